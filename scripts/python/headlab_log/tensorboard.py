"""Turns a run into an event file of TensorBoard: curves, heads, distributions, maps, settings."""

import argparse
import datetime
import itertools
import math
import os
import pathlib
from collections.abc import Sequence

import numpy as np

from .command import taken, told_plainly
from .compare import settings
from .exports import logged_maps
from .extras import needed
from .files import LogError, PathLike, open_h5
from .measures import by_measure
from .opening import open_run
from .output import in_folder, output_folder, plain_path
from .run import Run
from .text import printable

SUFFIX = ".headlab"  # ends the names of the event files that are ours to replace
PLUGINS = {"simple_value": "scalars", "histo": "histograms", "image": "images"}
SMALLEST = 96  # side of a map in an image, in pixels; smaller ones are enlarged


class Events:
    """An event file, which appears under its name once it is whole.

    Not SummaryWriter: that hands events one by one to a thread, many times slower than all values
    of a step as one event, and puts the time of conversion into the file's name and start.
    """

    def __init__(self, folder, started):
        from tensorboardX import RecordWriter
        from tensorboardX.proto.event_pb2 import Event

        self.event, self.started, self.described = Event, started, set()
        self.path = in_folder(folder, f"events.out.tfevents.{int(started)}{SUFFIX}")
        self.part = folder / ".headlab.part"  # no "tfevents": TensorBoard must not read it yet
        self.part.unlink(missing_ok=True)  # it would be written through a link
        self.records = RecordWriter(str(self.part))
        first = Event(wall_time=started, file_version="brain.Event:2")
        self.records.write(first.SerializeToString())

    def write(self, step, seconds, values):
        """Values of one step, `seconds` after the start of the run."""
        event = self.event(wall_time=self.started + seconds, step=step)
        event.summary.value.extend(values)
        self.records.write(event.SerializeToString())

    def describe(self, value, text):
        """Says what a value is: once, since TensorBoard takes it from the first of a tag."""
        if value.tag not in self.described:
            self.described.add(value.tag)
            value.metadata.summary_description = text
            value.metadata.plugin_data.plugin_name = PLUGINS[value.WhichOneof("value")]
        return value

    def close(self):
        self.records.flush()
        self.records.close()
        os.replace(self.part, self.path)
        for old in self.path.parent.glob(f"events.out.tfevents.*{SUFFIX}"):
            if old != self.path:
                old.unlink()


def to_tensorboard(run: Run, folder: PathLike | None = None) -> pathlib.Path:
    """Writes what a run logged for TensorBoard and returns the event file; folder: RUN/tensorboard.

    At their true steps and times: `train/loss`, ...; `val/loss`, ..., and `val_whole_split/loss`
    where the last evaluation had more examples than those before; `test/loss`, ..., where the
    data have a test part (`data.test`), at the last step; `heads.self.entropy/L0H1`, a
    curve for each head, with a group of cards for each statistic (those of two heads, such as
    `js`, only as histograms); histograms over heads, `heads.self/entropy`; maps of the first probe
    as images, a row a layer, a column a head, `attention.self/probe0`; the config as text and as
    hyperparameters. The same run makes the same file, which takes the place of an earlier one.
    LogError: the run has no log.

    >>> hl.to_tensorboard(run, "tensorboard").parent.name
    'tensorboard'
    """
    if "scalars" not in run:
        raise LogError(f"{run.path}: nothing logged (no log.h5), so nothing for TensorBoard")
    needed("tensorboardX", "tensorboard")
    needed("matplotlib", "tensorboard")  # colours of maps
    with open_h5(run.path / "log.h5") as file:
        created = file.attrs["created_utc"]
    started = datetime.datetime.fromisoformat(created.replace("Z", "+00:00")).timestamp()
    events = Events(output_folder(folder, run.path / "tensorboard"), started)
    write_settings(events, run)
    write_series(events, run, run.scalars, "train")
    for prefix, rows in evaluations(run).items():
        write_series(events, run, rows, prefix)
    for site in run.sites:
        write_heads(events, run, site)
        write_maps(events, run, site)
    events.close()
    return events.path


def evaluations(run):
    """Rows of validation by the prefix of their curves: one curve has one measure."""
    parts = by_measure(run.evaluations) if "eval" in run else []
    return {"val_whole_split" if n else "val": rows for n, (_, rows) in enumerate(parts)}


def seconds_at(run, steps):
    """When a step was logged, from the start of the run; between rows of scalars as if evenly."""
    return np.interp(steps, run.scalars.step, run.scalars.wall_time)


def scalar(tag, value):
    from tensorboardX.proto.summary_pb2 import Summary

    return Summary.Value(tag=tag, simple_value=value)


def about(variable):
    """A variable in words, for the card that shows it."""
    words = [variable.attrs.get(name, "") for name in ("long_name", "units", "comment")]
    return f"{words[0]}{f' [{words[1]}]' if words[1] else ''}: {words[2]}"


def tag_of(group, name):
    """train_loss becomes train/loss, and of the same rows test_loss becomes test/loss."""
    if name.startswith("test_"):
        group = "test"
    return f"{group}/{name.removeprefix(group.partition('_')[0] + '_')}"


def write_series(events, run, data, group):
    """Variables over `step`."""
    columns = {name: data[name].values for name in data.data_vars if name != "wall_time"}
    for index, (step, seconds) in enumerate(zip(data.step.values, seconds_at(run, data.step))):
        events.write(int(step), seconds, [
            events.describe(scalar(tag_of(group, name), column[index]), about(data[name]))
            for name, column in columns.items() if not np.isnan(column[index])])


def write_heads(events, run, site):
    """Each statistic of each head as a curve, and its distribution over heads as a histogram."""
    heads = run.heads(site)
    series = [head_series(site, heads[name]) for name in heads.data_vars if name != "head_mask"]
    for index, (step, seconds) in enumerate(zip(heads.step.values, seconds_at(run, heads.step))):
        values = []
        for name, tags, rows, text in series:
            there = np.isfinite(rows[index])
            values += [events.describe(scalar(tag, value), text)
                       for tag, value in zip(tags, rows[index]) if np.isfinite(value)]
            if there.any():
                values.append(events.describe(histogram(name, rows[index][there]), text))
        events.write(int(step), seconds, values)


def head_series(site, variable):
    """Its histogram's tag, its curves' tags, its values (step, curve), and what it is."""
    name, axes, tags = f"heads.{site}", variable.dims[1:], []
    if "head2" in axes:  # a pair once, no head with itself, and no curve for each of so many
        variable = variable.where(variable["head"] < variable["head2"])
    else:
        numbers = itertools.product(*(variable[axis].values for axis in axes))
        letters = [axis[0].upper() for axis in axes]
        tags = [f"{name}.{variable.name}/" + "".join(map("{}{}".format, letters, number))
                for number in numbers]
    rows = variable.values.reshape(len(variable), math.prod(variable.shape[1:]))
    return f"{name}/{variable.name}", tags, rows, about(variable)


def histogram(tag, values):
    from tensorboardX import summary

    return summary.histogram(tag, values, bins=30).value[0]


def write_maps(events, run, site):
    """The maps of the first probe at each snapshot as one image."""
    from tensorboardX import summary

    if f"attention/{site}" not in run:
        return
    maps = run.attention(site)
    if not maps.sizes["probe"]:
        return
    probe = maps.probe.values[0]
    text = (f"Rows: layers {maps['layer'].values.tolist()}. Columns: heads "
            f"{maps['head'].values.tolist()}. In each: a row a query, a column a key. Grey: no "
            "such head.")
    for step, seconds in zip(maps.step.values, seconds_at(run, maps.step)):
        picture = map_picture(logged_maps(run, step, probe, site).values)
        image = summary.image(f"attention.{site}/probe{probe}", picture, dataformats="HWC").value[0]
        events.write(int(step), seconds, [events.describe(image, text)])


def map_picture(maps):
    """Maps (layer, head, query, key) as an image (height, width, 3), uint8.

    Weights from 0 to 1 in cividis, which grows as the square root; signed ones in a diverging map,
    centred on 0.
    """
    from matplotlib import colormaps

    widest = np.nanmax(abs(maps), initial=0)
    if np.nanmin(maps, initial=0) < 0 or widest > 1:
        colours = colormaps["RdBu_r"](0.5 + 0.5 * maps / widest)
    else:
        colours = colormaps["cividis"](np.sqrt(maps))
    colours = np.where(np.isnan(maps)[..., None], 0.8, colours[..., :3])
    scale = -(-SMALLEST // max(maps.shape[2:]))
    tiles = colours.repeat(scale, axis=2).repeat(scale, axis=3)
    tiles = np.pad(tiles, ((0, 0), (0, 0), (2, 2), (2, 2), (0, 0)), constant_values=1)
    layers, heads, height, width, _ = tiles.shape
    picture = tiles.transpose(0, 2, 1, 3, 4).reshape(layers * height, heads * width, 3)
    return np.round(picture * 255).astype(np.uint8)


def write_settings(events, run):
    """The config as text, and as hyperparameters, so that TensorBoard tabulates runs by them."""
    from tensorboardX import summary

    code = "".join(f"    {line}\n" for line in run.config_yaml.splitlines())
    events.write(0, 0, summary.text("config", code).value)
    measured = {tag_of(prefix, name): 0
                for prefix, rows in evaluations(run).items() for name in rows.data_vars}
    model = {name: value for name, value in run.config.items() if name != "log"}
    plain = {key: value if isinstance(value, (bool, int, float, str)) else str(value)
             for key, value in settings(model).items()}
    experiment, start, end = summary.hparams(plain, measured)
    for part in (experiment, start, end) if run.state == "finished" else (experiment, start):
        events.write(0, 0, part.value)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="to_tensorboard", description="Turns runs into event files for TensorBoard; again "
        "whenever there is more. Look at them with: tensorboard --logdir FOLDER")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run directory, finished or not")
    parser.add_argument("-o", metavar="FOLDER", type=plain_path, help="where to, with several runs a folder in it "
                        "for each (default: RUN/tensorboard)")
    options = parser.parse_args(arguments)
    with told_plainly("to_tensorboard"):
        written = set()
        for words in options.runs:
            with open_run(taken("to_tensorboard", words)) as run:
                folder = options.o
                if folder and len(options.runs) > 1:
                    folder = pathlib.Path(folder) / f"{run.name}-{run.path.name}"
                    if folder in written:
                        raise LogError(f"{run.path}: {folder} holds another run by now; give each "
                                       "its own -o")
                    written.add(folder)
                print(printable(to_tensorboard(run, folder)))

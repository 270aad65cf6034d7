"""Searches a learning rate with Optuna, which chooses where a grid would try everything.

    scripts/venv scripts/optuna_sweep.py configs/char_mha.yaml --trials 16 [train.steps=500 ...]

Several of these at once share one study (an SQLite file). A training that is interrupted goes on when its
trial is asked for again by hand: its run is named in the study. Needs `pip install optuna`.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import time

from headlab_log.measures import LOSS

ROOT = pathlib.Path(__file__).resolve().parent.parent
DIVERGED, OUT_OF_MEMORY = 5, 6  # exit codes of `headlab run` that are a property of the settings


def objective(line, overrides):
    """Trains one trial; (state, loss), or None where the program fails for another reason."""
    run = subprocess.run([*line, *overrides, "--json"], stdout=subprocess.PIPE, text=True)
    if run.returncode == 0:
        return "COMPLETE", json.loads(run.stdout)[LOSS]
    if run.returncode in (DIVERGED, OUT_OF_MEMORY):
        return "FAIL", None
    sys.exit(run.returncode)


def shared_study(optuna, url, name):
    """The study of that name, made where there is none. Two drivers that start at once both make its tables,
    and one is told that they exist already (sqlalchemy's OperationalError): it looks again."""
    for again in (True, True, False):
        try:
            return optuna.create_study(storage=url, study_name=name, direction="minimize",
                                       load_if_exists=True)
        except Exception as error:
            if not again or "already exists" not in str(error):
                raise
            time.sleep(1)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=pathlib.Path)
    parser.add_argument("overrides", nargs="*", metavar="a.b=value")
    parser.add_argument("--trials", type=int, default=16, help="of this process (default: 16)")
    parser.add_argument("--study", default="sqlite:///optuna.db", metavar="URL",
                        help="where the study is kept (default: sqlite:///optuna.db)")
    parser.add_argument("--out", default="runs", help="directory of runs (default: runs)")
    parser.add_argument("--program", default=str(ROOT / "scripts/headlab"), help=argparse.SUPPRESS)
    arguments = parser.parse_intermixed_args()
    try:
        import optuna
    except ModuleNotFoundError:
        sys.exit("optuna_sweep: needs optuna: scripts/venv -m pip install optuna")
    study = shared_study(optuna, arguments.study, arguments.config.stem)
    line = [arguments.program, "run", str(arguments.config), "--out", arguments.out]
    for _ in range(arguments.trials):
        trial = study.ask()
        lr = trial.suggest_float("train.lr", 1e-4, 1e-2, log=True)
        state, loss = objective(line, [*arguments.overrides, f"train.lr={lr!r}"])
        study.tell(trial, loss, state=optuna.trial.TrialState[state])
    print(json.dumps({"loss": study.best_value, **study.best_params}))


if __name__ == "__main__":
    main()

"""What pip gets from `pip install ./scripts`: where the package is that it installed before."""

import sys


def get_requires_for_build_wheel(config_settings=None):
    sys.exit('nothing is installed from scripts any more: `pip install .` in the folder above installs headlab, which '
             'brings headlab_log; `pip install "./scripts/python[all]"` there installs headlab_log alone')


build_wheel = get_requires_for_build_sdist = build_sdist = get_requires_for_build_wheel

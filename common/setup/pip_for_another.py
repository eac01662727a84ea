"""pip, for a machine other than this: `python pip_for_another.py MARKERS ARGUMENTS...`, with MARKERS as JSON.

`pip download --platform` chooses wheels for another machine, but still reads the conditions in requirements, such as
`sys_platform == "win32"`, for the machine that it runs on (https://github.com/pypa/pip/issues/6117). Here they are
read for the machine that MARKERS describes.
"""

import json
import sys

from pip._internal.cli.main import main
from pip._vendor.packaging import markers

here = markers.default_environment
there = json.loads(sys.argv[1])
markers.default_environment = lambda: {**here(), **there}
sys.exit(main(sys.argv[2:]))

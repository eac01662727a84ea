#!/usr/bin/env bash
apt-get update && apt-get install -y python3 python3-venv
python3 "$(dirname "$0")/course/course.py" grade STAGE --help  # the first command installs what it needs

"""Run by two processes in test_search_command.py: commands of a JSON file, one after the other."""

import json
import sys
from pathlib import Path

from app.cli import main

for words in json.loads(Path(sys.argv[1]).read_text()):
    sys.argv = ["moeprune", *words]
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            raise

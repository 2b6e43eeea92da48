"""What a paho-mqtt client may expect of a broker: `run.py HOST PORT VERSION [WORD]`, version 3.1, 3.1.1 or 5; with a
word only the checks that have it in their name.

Prints one line for each check and, last, how many passed; ends with 1 when one failed.
"""

import os
import sys
import time
import traceback

import every_version  # noqa: F401  its checks register themselves
import version_5  # noqa: F401
from checks import CHECKS, Names
from session import Session


def main():
    Session.host, Session.port, version = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    word = sys.argv[4] if len(sys.argv) > 4 else ""
    failed = passed = 0
    for number, (function, versions) in enumerate(CHECKS):
        if version not in versions or word not in function.__name__:
            continue
        started = time.monotonic()
        try:
            function(Names(version, number))
            passed += 1
            print(f"ok      {function.__name__} ({time.monotonic() - started:.1f} s)", flush=True)
        except Exception:  # A check may fail in any way; the others still run.
            failed += 1
            print(f"FAILED  {function.__name__}\n{traceback.format_exc()}", flush=True)
    print(f"{passed} passed, {failed} failed")
    # Threads of abandoned clients must not keep the process.
    sys.stdout.flush()
    os._exit(1 if failed else 0)


main()

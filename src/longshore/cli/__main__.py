"""`python -m longshore.cli …`, and a file that `spark-submit` takes: everything the command can do."""

import sys

if __name__ == "__main__":
    if not __package__ and not sys.flags.safe_path:
        sys.path.pop(0)  # run as a file: its folder would come before the standard library, which has a `token`, too
    from longshore.cli.main import run

    run()

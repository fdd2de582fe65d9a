"""`python -m longshore.cli …`, and a file that `spark-submit` takes: everything the command can do."""

from longshore.cli.main import run

if __name__ == "__main__":
    run()

"""`python -m longshore …` runs the command line."""

if __name__ == "__main__":
    from longshore.cli.main import run

    run()

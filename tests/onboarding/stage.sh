# Read before the shell commands of a page: what a reader leaves running in another terminal goes on in the background
# here, what would fetch packages only looks whether they are there, and everything ends with the page.
set -eEuo pipefail
PATH="$ENVIRONMENT/bin:$PATH"
trap 'echo "failed: $BASH_COMMAND" >&2' ERR

left_running=()
said="$STAGE/said"

leave_running() {
    "$@" >>"$said" 2>&1 &
    left_running+=("$!")
}

# a command that was left running must still run, or have ended well by itself
stop_what_runs() {
    local process failed=0
    for process in "${left_running[@]}"; do
        if kill -TERM "$process" 2>/dev/null; then
            wait "$process" || true
        else
            wait "$process" || failed=1
        fi
    done
    left_running=()
    if [ "$failed" = 1 ]; then
        cat "$said" >&2
        return 1
    fi
}

until_it_answers() {
    until command curl --silent --output /dev/null "$1"; do
        kill -0 "${left_running[-1]}" 2>/dev/null || { cat "$said" >&2; exit 1; }
        sleep 0.1
    done
}

at_the_end() {
    local code=$?
    trap - EXIT
    stop_what_runs || code=1
    exit "$code"
}
trap at_the_end EXIT

longshore() {
    case " $* " in
    *" --help "* | *" --until-empty "*) command longshore "$@" ;;
    " up "* | " serve "*)
        stop_what_runs
        leave_running command longshore "$@"
        until_it_answers "http://127.0.0.1:$LONGSHORE_PORT/readyz"
        ;;
    " worker "* | " scheduler "* | *" -f "* | *" --follow "* | *" --watch "*) leave_running command longshore "$@" ;;
    *) command longshore "$@" ;;
    esac
}

# a refusal is a failure of the page
curl() {
    command curl --fail-with-body "$@"
}

uvicorn() {
    stop_what_runs
    leave_running command uvicorn --port "$OTHER_PORT" "$@"
    until_it_answers "http://127.0.0.1:$OTHER_PORT/"
}

pip() {
    [ "$1" = install ]
    shift
    command python -m pip --quiet install --dry-run --no-index --no-build-isolation "${@//PATH_TO_CLONE/$REPOSITORY}"
}

# .venv is the environment of the test run, which no page may change
python3() {
    [ "$1 $2 $3" = "-m venv .venv" ]
}

# `make test` is what runs this: of the targets only `run` is run, the others are looked at
make() {
    local options=(--no-print-directory --directory "$REPOSITORY" VENV="$ENVIRONMENT")
    options+=(--assume-old "$ENVIRONMENT/.runnable" --assume-old "$ENVIRONMENT/.ready")
    if [ "${1-}" = run ]; then
        stop_what_runs
        LONGSHORE_URL="sqlite:///$STAGE/run.db" leave_running command make "${options[@]}" run
        until_it_answers "http://127.0.0.1:$LONGSHORE_PORT/readyz"
    else
        command make "${options[@]}" --dry-run "$@" >/dev/null
    fi
}

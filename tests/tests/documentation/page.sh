# What the shell that runs a page begins with; `shell.rs` appends the commands.
# Names that begin with `_page` are the test's, all others the page's.

set -o pipefail # what fails in front of a `| wc -l` fails
_page_status=0  # of the last command: a page may ask for `$?`
_page_watched=  # process group of a command that ends by Ctrl-C

# Ends whatever the page has left running, and this shell with it.
_page_end() {
    [ -z "$_page_watched" ] || kill -KILL -- "-$_page_watched" 2> /dev/null
    kill -KILL 0
}
trap _page_end EXIT
trap exit TERM

# Waits until the command in the background has printed $2 into one of the files
# $1.*, sends it Ctrl-C, and waits for its end.
_page_interrupt() {
    until cat "$1".* | grep -qF -e "$2"; do
        kill -0 "$_page_watched" 2> /dev/null || break
        sleep 0.1
    done
    kill -INT -- "-$_page_watched" 2> /dev/null
    wait "$_page_watched"
    local status=$?
    _page_watched=
    return $status
}

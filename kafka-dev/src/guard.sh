# Runs a server and ends it when whoever started this shell is gone, however it went: its end of the pipe that is this
# shell's standard input closes then. Until then each line of the pipe is the name of a signal for the server.
#   sh guard.sh OUTPUT FOLDER COMMAND...
# OUTPUT takes what the server prints; FOLDER, unless empty, is removed with an orphaned server.
output=$1
folder=$2
shift 2
exec 3<&0
"$@" </dev/null >"$output" 2>&1 3<&- &
server=$!
(
    while read -r signal <&3; do kill -s "$signal" "$server"; done
    # Not to be stopped any more by the last line below.
    trap '' TERM
    kill -s KILL "$server"
    [ -n "$folder" ] || exit 0
    tries=0
    while [ -d "$folder" ] && [ "$tries" -lt 50 ]; do
        rm -rf "$folder" || sleep 0.1
        tries=$((tries + 1))
    done
    # The last node takes the cluster's own folder along.
    rmdir "$(dirname "$folder")"
) >/dev/null 2>&1 &
watcher=$!
# The number of a server that ended may be given to another process: nobody may signal it from here on.
wait "$server"
kill -s TERM "$watcher"

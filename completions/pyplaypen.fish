# fish completion for pyplaypen. completion_test.go holds it to the program.

# Whether the command is one of the arguments, and the line is not yet behind run's --.
function __pyplaypen_in
    set -l words (commandline -opc)
    contains -- "$words[2]" $argv
    and not __pyplaypen_behind_dashes
end

function __pyplaypen_behind_dashes
    set -l words (commandline -opc)
    test "$words[2]" = run
    and contains -- -- $words[3..-1]
end

function __pyplaypen_without_command
    test (count (commandline -opc)) -eq 1
end

# The target as it completes without pyplaypen.
function __pyplaypen_target
    set -l words (commandline -opc)
    set -l dashes (contains -i -- -- $words)
    set -e words[1..$dashes]
    set -l line (string escape -- $words) (commandline -ct)
    complete -C "$line"
end

function __pyplaypen_limits
    set -l words (commandline -opc)
    printf '%s\t%s\n' \
        wall_seconds 'time from start of the call to the kill (30)' \
        cpu_seconds 'CPU time of each process (25)' \
        memory_bytes 'address space of each process (1GiB)' \
        process_count 'processes and threads at once (16)' \
        open_files 'open file descriptors of each process (256)' \
        stdout_bytes 'stdout that is kept (64KiB)' \
        stderr_bytes 'stderr that is kept (64KiB)' \
        file_bytes 'size of each file written (50MiB)'
    test "$words[2]" = run
    or printf '%s\t%s\n' \
        return_value_bytes 'JSON text of the return value (1000000)' \
        result_frame_bytes 'the whole frame from the runner (2000000)' \
        artifact_count 'files kept (16)' \
        artifact_bytes 'all files kept, together (50MiB)'
end

function __pyplaypen_limit_values
    commandline -ct | string replace -r '^--limit=' '' | string match -q '*=*'
    or __pyplaypen_limits | string replace \t =\t
end

function __pyplaypen_limit_list
    set -l given (commandline -ct | string replace -r '^--check=' '' | string match -r '.*,')
    __pyplaypen_limits | string replace -r '^' "$given"
end

complete -c pyplaypen -f
complete -c pyplaypen -n __pyplaypen_behind_dashes -a '(__pyplaypen_target)'

complete -c pyplaypen -n __pyplaypen_without_command -a run -d 'Bound a command'
complete -c pyplaypen -n __pyplaypen_without_command -a exec -d 'Run Python source and print one JSON result'
complete -c pyplaypen -n __pyplaypen_without_command -a enforcement -d 'Say what enforces each limit on this machine'
complete -c pyplaypen -n 'not __pyplaypen_behind_dashes' -s h -l help -d 'Print help'
complete -c pyplaypen -n 'not __pyplaypen_behind_dashes' -l version -d 'Print the version'

set -l call '__pyplaypen_in run exec'
complete -c pyplaypen -n $call -l limit -x -a '(__pyplaypen_limit_values)' -d 'Set a limit'
complete -c pyplaypen -n $call -l child-uid -x -d 'As root: the uid to drop to, or a range of them'
complete -c pyplaypen -n $call -l kill-after -x -d 'Grace between SIGTERM and SIGKILL'
complete -c pyplaypen -n $call -l request-id -x -d 'Name of this call in records'
complete -c pyplaypen -n $call -l audit-file -r -F -d 'Append an audit record'
complete -c pyplaypen -n $call -l audit-extra -x -d 'JSON object to copy into the audit record'
complete -c pyplaypen -n $call -l report -r -F -d 'Write what the call used'
complete -c pyplaypen -n $call -l env -x -a '(set -nx)' -d 'Set a variable, or let it through'
complete -c pyplaypen -n $call -l clean-env -d 'Keep the caller\'s environment from the command'
complete -c pyplaypen -n $call -l max-concurrency -x -a '(seq 32)' -d 'How many calls may run at once'
complete -c pyplaypen -n $call -l slot-dir -x -a '(__fish_complete_directories)' -d 'Directory of the slots'

set -l run '__pyplaypen_in run'
complete -c pyplaypen -n $run -a '--' -d 'The command follows'
complete -c pyplaypen -n $run -l stdin -d 'Pass stdin on to the command'
complete -c pyplaypen -n $run -l buffer -d 'Hold the output back until the end'
complete -c pyplaypen -n $run -l merge-output -d 'One pipe for stdout and stderr'
complete -c pyplaypen -n $run -l json -d 'Print one JSON object'
complete -c pyplaypen -n $run -l pass-fd -x -d 'Let a descriptor through'
complete -c pyplaypen -n $run -l in-place -d 'Execute the command in place of pyplaypen'
complete -c pyplaypen -n $run -l restore-ownership -d 'As root: give files that the call made to the owner of the directory'

set -l exec '__pyplaypen_in exec'
complete -c pyplaypen -n $exec -F
complete -c pyplaypen -n $exec -s c -l code -x -d 'Python source'
complete -c pyplaypen -n $exec -l python -r -F -a '(__fish_complete_command)' -d Interpreter
complete -c pyplaypen -n $exec -l artifact-dir -x -a '(__fish_complete_directories)' -d 'Where to keep files'
complete -c pyplaypen -n $exec -l globals-provider -x -d 'Called for a dict of globals'
complete -c pyplaypen -n $exec -l type-projector -x -a numpy-pandas -d 'Called with values that have no JSON form'
complete -c pyplaypen -n $exec -l extra -x -d 'JSON object for the globals provider'
complete -c pyplaypen -n $exec -l warn-only -d 'Run although a limit is not enforced here'
complete -c pyplaypen -n $exec -l self-check -d 'Run no code'

set -l enforcement '__pyplaypen_in enforcement'
complete -c pyplaypen -n $enforcement -l json -d 'Print one JSON object'
complete -c pyplaypen -n $enforcement -l child-uid -x -d 'Answer for calls with this uid or range'
complete -c pyplaypen -n $enforcement -l check -x -a '(__pyplaypen_limit_list)' -d 'Exit 0 if these limits are enforced'

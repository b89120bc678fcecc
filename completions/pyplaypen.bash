# bash completion for pyplaypen. completion_test.go holds it to the program.

# The words of $1 that fit, behind what of the current word stays as it is.
_pyplaypen_words() {
	COMPREPLY=($(compgen -W "$1" -P "$head" -- "$cur"))
}

# Names of files ($1 is -f) or directories (-d).
_pyplaypen_files() {
	local IFS=$'\n'
	compopt -o filenames 2>/dev/null
	COMPREPLY=($(compgen "$1" -P "$head" -- "$cur"))
}

# The command whose name is word number $1, as it completes without pyplaypen.
_pyplaypen_command() {
	if declare -F _comp_command_offset >/dev/null; then
		_comp_command_offset "$1"
	elif declare -F _command_offset >/dev/null; then
		_command_offset "$1"
	elif ((COMP_CWORD > $1)) || [[ $cur == */* ]]; then
		_pyplaypen_files -f
	else
		COMPREPLY=($(compgen -c -- "$cur"))
	fi
}

_pyplaypen() {
	COMPREPLY=()
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]}
	local flag='' head='' flags='' i
	local call='--limit --child-uid --kill-after --request-id --audit-file --audit-extra --report --env --clean-env --max-concurrency --slot-dir'
	local limits='wall_seconds cpu_seconds memory_bytes process_count open_files stdout_bytes stderr_bytes file_bytes'
	local exec_limits='return_value_bytes result_frame_bytes artifact_count artifact_bytes'

	if ((COMP_CWORD == 1)); then
		_pyplaypen_words 'run exec enforcement --help --version'
		return
	fi
	case $command in
	run)
		for ((i = 2; i < COMP_CWORD; i++)); do
			if [[ ${COMP_WORDS[i]} == -- ]]; then
				_pyplaypen_command $((i + 1))
				return
			fi
		done
		flags="$call --stdin --buffer --merge-output --json --pass-fd --in-place --restore-ownership --help --version --"
		;;
	exec)
		limits="$limits $exec_limits"
		flags="$call --code --python --artifact-dir --globals-provider --type-projector --extra --warn-only --self-check --help --version"
		;;
	enforcement)
		limits="$limits $exec_limits"
		flags='--json --child-uid --check --help --version'
		;;
	*) return ;;
	esac

	# The flag whose value the word is: = may be a word of its own.
	if [[ $cur == '=' ]]; then
		flag=$prev cur=''
	elif [[ $prev == '=' ]]; then
		flag=${COMP_WORDS[COMP_CWORD - 2]}
	elif [[ $cur == --*=* ]]; then
		flag=${cur%%=*} head=${cur%%=*}= cur=${cur#*=}
	elif [[ $prev == -* ]]; then
		flag=$prev
	fi
	case $flag in
	[!-]*) ;; # behind NAME=
	--limit)
		compopt -o nospace 2>/dev/null
		[[ $cur == *=* ]] || _pyplaypen_words "${limits// /= }="
		;;
	--check)
		if [[ $cur == *,* ]]; then
			head+=${cur%,*}, cur=${cur##*,}
		fi
		_pyplaypen_words "$limits"
		;;
	--audit-file | --report) _pyplaypen_files -f ;;
	--slot-dir | --artifact-dir) _pyplaypen_files -d ;;
	--python)
		if [[ $cur == */* ]]; then
			_pyplaypen_files -f
		else
			COMPREPLY=($(compgen -c -P "$head" -- "$cur"))
		fi
		;;
	--env)
		[[ $cur == *=* ]] || COMPREPLY=($(compgen -e -P "$head" -- "$cur"))
		;;
	--type-projector) _pyplaypen_words 'numpy-pandas' ;;
	--max-concurrency) _pyplaypen_words "$(echo {1..32})" ;;
	--child-uid | --kill-after | --request-id | --audit-extra | --pass-fd | -c | --code | --globals-provider | --extra) ;;
	*)
		if [[ $command == exec && $cur != -* ]]; then
			_pyplaypen_files -f
		else
			_pyplaypen_words "$flags"
		fi
		;;
	esac
}

complete -F _pyplaypen pyplaypen

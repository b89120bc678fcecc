package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// bashDriver prints what bash would offer for each of its arguments, a line for
// each: the words of a command line, with newlines between them.
const bashDriver = `
[ -z "$BASH_COMPLETION" ] || . "$BASH_COMPLETION"
. "$COMPLETIONS/pyplaypen.bash"
complete -W '--alpha --beta' zzprobe
compopt() { :; } # which complains outside of a real completion
for line; do
	mapfile -t COMP_WORDS <<<"$line"
	COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMP_LINE=${COMP_WORDS[*]} COMP_TYPE=9 COMP_KEY=9
	COMP_POINT=${#COMP_LINE}
	_pyplaypen pyplaypen "${COMP_WORDS[-1]}" "${COMP_WORDS[-2]}"
	printf '%s\t' "${COMPREPLY[@]}"
	echo
done`

const fishDriver = `
source $COMPLETIONS/pyplaypen.fish
complete -c zzprobe -l alpha
complete -c zzprobe -l beta
for line in $argv
    printf '%s\t' (complete -C $line | string replace -r '\t.*' '')
    echo
end`

// zshDriver types each line into a zsh that runs on a terminal of its own. That
// one writes what it offers to a file, since a screen is hard to read.
const zshDriver = `
zmodload zsh/zpty || exit
wait_for() { # while that shell's screen is read, so that it can write on
	repeat 1000; do
		[[ -e $1 ]] && return
		zpty -r -t shell screen
		sleep 0.02
	done
	print "no $1"
	exit 1
}
zpty shell zsh -f -i
zpty -w shell 'setopt extendedglob; source $PWD/inner.zsh'
wait_for ready
for line; do
	rm -f done hits
	zpty -n -w shell $line$'\t'
	wait_for done
	[[ ! -e hits ]] || print -rn -- ${(pj:\t:)${(f)"$(<hits)"}}
	print
	zpty -n -w shell $'\C-u'
done
zpty -d shell`

const zshInner = `
PS1=
setopt no_auto_list no_auto_menu no_beep
fpath=($COMPLETIONS $fpath)
autoload -Uz compinit
compinit -D -u
bindkey -e
bindkey '^I' complete-and-say
complete-and-say() { zle complete-word; : >done }
zle -N complete-and-say
_zzprobe() { _arguments --alpha --beta }
compdef _zzprobe zzprobe
compadd() { # with -O, -A and -D it only fills arrays
	local -i end=${@[(i)(-|--)]}
	if [[ " ${@[1,end-1]} " != *' -'[a-zA-Z]#[OAD]\ * ]]; then
		local -a hits
		builtin compadd -A hits "$@"
		print -rl -- $hits >>hits
	fi
	builtin compadd "$@"
}
: >ready`

// bashWords has each word of the line on a line of its own, as bash splits it.
func bashWords(line string) string {
	var words []string
	for word := range strings.SplitSeq(line, " ") {
		name, value, assigned := strings.Cut(word, "=")
		words = append(words, name)
		if assigned {
			words = append(words, "=")
		}
		if value != "" {
			words = append(words, value)
		}
	}
	return strings.Join(words, "\n")
}

// flagNames are all of a command's, as they are typed.
func flagNames(t *testing.T, command string) []string {
	t.Helper()
	app := model(t)
	flags := app.Flags
	for _, child := range app.Children {
		if child.Name == command {
			flags = slices.Concat(flags, child.Flags)
		}
	}
	var names []string
	for _, flag := range flags {
		names = append(names, "--"+flag.Name)
	}
	return names
}

// TestCompletion has each shell complete lines in a directory with some-file,
// some-dir and, on PATH, zzprobe, and holds what it offers to the program.
func TestCompletion(t *testing.T) {
	var runLimits []string
	for _, info := range limitTable {
		if !info.execOnly {
			runLimits = append(runLimits, info.name)
		}
	}
	var commands []string
	for _, child := range model(t).Children {
		commands = append(commands, child.Name)
	}
	files := []string{"some-dir", "some-file"}
	lines := []struct {
		line string
		want []string
	}{
		{"", commands},
		{"run --", flagNames(t, "run")},
		{"exec --", flagNames(t, "exec")},
		{"enforcement --", flagNames(t, "enforcement")},
		{"run --stdin --me", []string{"--merge-output"}},
		{"run --limit ", runLimits},
		{"run --limit=", runLimits},
		{"run --limit=op", []string{"open_files"}},
		{"run --limit wall_seconds=", nil},
		{"exec --limit ", limitNames()},
		{"exec --limit art", []string{"artifact_count", "artifact_bytes"}},
		{"enforcement --check ", limitNames()},
		{"enforcement --check process_count,me", []string{"memory_bytes"}},
		{"exec --type-projector ", []string{builtinProjector}},
		{"run --max-concurrency 3", []string{"3", "30", "31", "32"}},
		{"exec --max-concurrency=1", []string{"1", "10", "11", "12", "13", "14", "15", "16", "17", "18", "19"}},
		{"run --env ZZV", []string{"ZZVARIABLE"}},
		{"run --report some", files},
		{"run --audit-file=some", files},
		{"run --slot-dir some", files[:1]},
		{"exec --artifact-dir some", files[:1]},
		{"exec some", files},
		{"exec -c '1' --kill-after ", nil},
		{"exec --python zzpro", []string{"zzprobe"}},
		{"run -- zzpro", []string{"zzprobe"}},
		{"run --limit wall_seconds=1 --stdin -- zzprobe --al", []string{"--alpha"}},
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	const bashCompletion = "/usr/share/bash-completion/bash_completion"
	for _, tt := range []struct {
		name, shell, needs string
		env                []string
		args               []string
	}{
		{"bash", "bash", bashCompletion, []string{"BASH_COMPLETION=" + bashCompletion}, []string{"--norc", "-c", bashDriver, "bash"}},
		{"bash alone", "bash", "", nil, []string{"--norc", "-c", bashDriver, "bash"}},
		{"zsh", "zsh", "", nil, []string{"-f", "-c", zshDriver, "zsh"}},
		{"fish", "fish", "", nil, []string{"--no-config", "-c", fishDriver}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath(tt.shell); err != nil {
				skip(t, tt.shell+" is missing")
			}
			if _, err := os.Stat(tt.needs); tt.needs != "" && err != nil {
				skip(t, tt.needs+" is missing")
			}
			dir := openTempDir(t)
			for name, text := range map[string]string{"some-file": "", "bin/zzprobe": "#!/bin/sh\n", "some-dir/x": "", "inner.zsh": zshInner} {
				if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			args := slices.Clone(tt.args)
			for _, l := range lines {
				line := "pyplaypen " + l.line
				if tt.shell == "bash" {
					line = bashWords(line)
				}
				args = append(args, line)
			}
			cmd := exec.Command(tt.shell, args...)
			cmd.Dir = dir
			cmd.Env = append([]string{"PATH=" + dir + "/bin:/usr/local/bin:/usr/bin:/bin", "HOME=" + dir, "LC_ALL=C.UTF-8", "TERM=dumb",
				"ZZVARIABLE=1", "COMPLETIONS=" + filepath.Join(here, "completions")}, tt.env...)
			var complaints strings.Builder
			cmd.Stderr = &complaints
			out, err := cmd.Output()
			if err != nil || complaints.Len() > 0 {
				t.Errorf("%v\n%s%s", err, out, complaints.String())
			}
			offers := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
			if len(offers) != len(lines) {
				t.Fatalf("%d lines, want %d:\n%s", len(offers), len(lines), out)
			}
			for i, l := range lines {
				if tt.name == "bash alone" && strings.Contains(l.line, " zzprobe ") {
					continue
				}
				var got []string
				for offer := range strings.SplitSeq(offers[i], "\t") {
					// The shells differ in whether an offer has what is there
					// already in it, and the = or / that follows.
					offer = strings.TrimRight(offer, "=/")
					offer = offer[strings.LastIndexAny(offer, "=,")+1:]
					isFlag := strings.HasPrefix(offer, "-")
					if offer != "" && offer != "--" && !(isFlag && !strings.Contains(l.line, "--")) {
						got = append(got, offer)
					}
				}
				wantSame(t, l.line, got, l.want)
			}
		})
	}
}

// Pyplaypen bounds one command, or one piece of Python, inside a container, a
// CI job or a developer's machine: wall clock, CPU, memory, processes, open
// files, file size and output, with the whole process tree torn down at the end.
//
// Of what the runtime does, these leave out what short processes have no use
// for: looking up the cgroup's CPU quota now and then, and naming memory
// mappings.
//
//go:debug updatemaxprocs=0
//go:debug decoratemappings=0
package main

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
)

// init is where the child stage begins and ends. Init functions run on the thread
// that the process started with (runtime.LockOSThread), on which it must stay:
// later the runtime would start another thread for a lock on this one.
func init() {
	if len(os.Args) > 1 && os.Args[1] == childStage {
		if _, isShim := shimName(os.Args[0]); !isShim { // the supervisor says pyplaypen
			os.Exit(childMain(os.Args))
		}
	}
}

func main() { os.Exit(mainCode()) }

// mainCode is main for the test binary, which needs the code and not the exit.
func mainCode() int {
	if len(os.Args) == 0 {
		return exitUsage // before Linux 5.18, execve(2) with an empty argv
	}
	_, isShim := shimName(os.Args[0])
	var code int
	var err error
	if isShim {
		code, err = shim(os.Args[0], os.Args[1:])
	} else {
		code, err = command(os.Args[1:])
	}
	if err == nil {
		return code
	}
	var exit *exitError
	if errors.As(err, &exit) {
		fmt.Fprintln(os.Stderr, prefix+oneLine(exit.line))
		return exit.code
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, prefix+oneLine(err.Error()))
		return exitCannotRun
	}
	return code
}

type cli struct {
	Version kong.VersionFlag `help:"Print the version."`

	Run         runCmd         `cmd:"" help:"Bound a command: pyplaypen run [flags] -- argv..."`
	Exec        execCmd        `cmd:"" help:"Run Python source in a fresh child and print one JSON result."`
	Enforcement enforcementCmd `cmd:"" help:"Say, limit by limit, what enforces it on this machine."`
}

// command parses the words behind the program's name, carries them out, and
// returns the exit code.
func command(args []string) (int, error) {
	start := time.Now()
	own, target, split := args, []string(nil), -1
	if len(args) > 0 && args[0] == "run" {
		if split = slices.Index(args, "--"); split >= 0 {
			own, target = args[:split], args[split+1:]
			if run, ok := quickRun(own[1:]); ok && len(target) > 0 {
				return run.run(target, start)
			}
		}
	}
	if len(args) > 0 && args[0] == "exec" {
		own = joinCode(args)
		if exec, ok := quickExec(own[1:]); ok {
			return exec.run(start)
		}
	}
	var flags cli
	parser, err := newParser(&flags)
	if err != nil {
		return 0, fmt.Errorf("command line definition: %w", err)
	}
	selected, err := parser.Parse(own)
	if err != nil {
		if len(args) > 0 && args[0] == "run" && split < 0 && strings.HasPrefix(err.Error(), "unexpected argument") {
			return 0, usageError("run: no -- before the command: pyplaypen run [flags] -- argv...")
		}
		if len(args) == 0 {
			return 0, usageError("%w; see pyplaypen --help", err)
		}
		return 0, usageError("%w", err)
	}
	switch selected.Command() {
	case "run":
		if split < 0 {
			return 0, usageError("run: no -- before the command: pyplaypen run [flags] -- argv...")
		}
		if len(target) == 0 {
			return 0, usageError("run: no command behind --")
		}
		return flags.Run.run(target, start)
	case "exec", "exec <file>":
		return flags.Exec.run(start)
	case "enforcement":
		return flags.Enforcement.run()
	}
	return 0, usageError("no command")
}

func newParser(flags *cli) (*kong.Kong, error) {
	return kong.New(flags,
		kong.Name("pyplaypen"),
		kong.Description("Bound one command inside a container, a CI job or a developer's machine. Defence in depth against buggy, greedy or runaway code; not a boundary against code that tries to escape."),
		kong.Vars{"version": version()},
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
	)
}

// joinCode turns "-c CODE" into one word, since the code may begin with a dash.
func joinCode(args []string) []string {
	for i, arg := range args {
		if arg == "--" {
			break
		}
		if arg == "-c" && i+1 < len(args) {
			return slices.Concat(args[:i], []string{"--code=" + args[i+1]}, args[i+2:])
		}
	}
	return args
}

// releaseVersion is set by the linker for a release.
var releaseVersion string

func version() string {
	if releaseVersion != "" {
		return "pyplaypen " + releaseVersion
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return "pyplaypen " + info.Main.Version
	}
	return "pyplaypen (devel)"
}

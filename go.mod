module pyplaypen

go 1.26.0

require (
	github.com/alecthomas/kong v1.17.0
	golang.org/x/sys v0.50.0
)

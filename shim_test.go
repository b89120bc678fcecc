package main

import "testing"

func TestShimName(t *testing.T) {
	for _, c := range []struct {
		arg0, name string
		shim       bool
	}{
		{"python3", "python3", true},
		{"/home/me/shims/make", "make", true},
		{"./sh", "sh", true},
		{"playpen", "playpen", true},
		{"pyplaype", "pyplaype", true},
		{"/opt/pyplaypen/bin/node", "node", true},
		{"pyplaypen", "pyplaypen", false},
		{"/usr/local/bin/pyplaypen", "pyplaypen", false},
		{"pyplaypen_linux_amd64", "pyplaypen_linux_amd64", false},
		{"./pyplaypen-1.2", "pyplaypen-1.2", false},
		{"", ".", false},
		{"/", "/", false},
	} {
		if name, shim := shimName(c.arg0); name != c.name || shim != c.shim {
			t.Errorf("%q: got %q, %v", c.arg0, name, shim)
		}
	}
}

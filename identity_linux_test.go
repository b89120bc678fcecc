package main

import "testing"

func TestIDMapped(t *testing.T) {
	const whole = "         0          0 4294967295\n"
	const rootless = "         0       1000          1\n         1     100000      65536\n"
	for _, c := range []struct {
		text string
		id   int
		want bool
	}{
		{whole, 0, true}, {whole, 65534, true}, {whole, 4294967294, true}, {whole, 4294967295, false},
		{rootless, 0, true}, {rootless, 1, true}, {rootless, 65536, true}, {rootless, 65537, false},
		{"0 1000 1\n", 65534, false}, {"1000 1000 1", 1000, true}, {"1000 1000 1", 0, false},
		{"10 0 0\n", 10, false}, {"", 0, false}, {"a b c\n", 0, false}, {"0 0\n", 0, false},
	} {
		if got := idMapped(c.text, c.id); got != c.want {
			t.Errorf("%d in %q: got %v", c.id, c.text, got)
		}
	}
}

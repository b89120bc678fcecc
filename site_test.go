package main

import "testing"

func TestNeedsSite(t *testing.T) {
	for source, want := range map[string]bool{
		"1 + 1":                     false,
		"x = [1, 2]\nprint(x)\nx":   false,
		"import os":                 true,
		"exit":                      true,
		"().__class__":              true,
		"eval('1')":                 true,
		"exec(chr(105))":            true,
		"getattr(print, 'x')":       true,
		"ｑuit":                      true,
		"# -*- coding: latin-1 -*-": true,
	} {
		x := &execCall{flags: &execCmd{}, source: []byte(source)}
		if got := x.needsSite(); got != want {
			t.Errorf("%q: %v, want %v", source, got, want)
		}
	}
	for name, flags := range map[string]*execCmd{
		"provider":   {GlobalsProvider: "m:f"},
		"projector":  {TypeProjector: builtinProjector},
		"self-check": {SelfCheck: true},
	} {
		if x := (&execCall{flags: flags, source: []byte("1")}); !x.needsSite() {
			t.Errorf("%s: false", name)
		}
	}
}

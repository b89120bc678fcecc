package main

func init() {
	programs["pyplaypen-without-children-file"] = func() {
		testOnlyNoChildrenFile = true
		main()
	}
}

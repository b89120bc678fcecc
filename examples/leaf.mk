a b c d:
	@echo leaf $@

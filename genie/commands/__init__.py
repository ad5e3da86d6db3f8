"""The verbs of the `genie` command, one module each: HELP, add_arguments(parser), run(args)."""

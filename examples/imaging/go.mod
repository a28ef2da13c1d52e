module github.com/taskwarden/taskwarden/examples/imaging

go 1.26.0

require (
	github.com/google/go-cmp v0.7.0
	github.com/taskwarden/taskwarden v0.0.0
	golang.org/x/image v0.48.0
	mvdan.cc/sh/v3 v3.14.1
)

require (
	golang.org/x/sys v0.50.0 // indirect
	golang.org/x/term v0.46.0 // indirect
	golang.org/x/text v0.44.0 // indirect
)

replace github.com/taskwarden/taskwarden => ../..

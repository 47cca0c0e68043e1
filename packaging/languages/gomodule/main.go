// SPDX-License-Identifier: PostgreSQL

// Command gomodule writes a module as a module proxy has it: gomodule OUT VERSION SECONDS FOLDER...
// Each FOLDER holds a go.mod; OUT then has PATH/@v/VERSION.info, .mod and .zip, and list. SECONDS is the time of the version.
// golang.org/x/mod/zip makes the archive, as the go command does, and refuses what the go command would refuse.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

func main() {
	if len(os.Args) < 5 {
		fail(fmt.Errorf("gomodule OUT VERSION SECONDS FOLDER..."))
	}
	seconds, err := strconv.ParseInt(os.Args[3], 10, 64)
	fail(err)
	for _, folder := range os.Args[4:] {
		fail(publish(os.Args[1], os.Args[2], time.Unix(seconds, 0).UTC(), folder))
	}
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "gomodule:", err)
		os.Exit(1)
	}
}

func publish(out, version string, at time.Time, folder string) error {
	described, err := os.ReadFile(filepath.Join(folder, "go.mod"))
	if err != nil {
		return err
	}
	named := module.Version{Path: modfile.ModulePath(described), Version: version}
	if err := module.Check(named.Path, named.Version); err != nil {
		return err
	}
	escaped, err := module.EscapePath(named.Path)
	if err != nil {
		return err
	}
	place := filepath.Join(out, filepath.FromSlash(escaped), "@v")
	if err := os.MkdirAll(place, 0o755); err != nil {
		return err
	}
	info, err := json.Marshal(struct {
		Version string
		Time    time.Time
	}{version, at})
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{"list": []byte(version + "\n"), version + ".info": info, version + ".mod": described} {
		if err := os.WriteFile(filepath.Join(place, name), content, 0o644); err != nil {
			return err
		}
	}
	archive, err := os.Create(filepath.Join(place, version+".zip"))
	if err != nil {
		return err
	}
	if err := zip.CreateFromDir(archive, named, folder); err != nil {
		return err
	}
	return archive.Close()
}

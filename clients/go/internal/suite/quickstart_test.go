// SPDX-License-Identifier: PostgreSQL

package suite

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every line of docs/quickstart-go.md, in order, in an empty folder.
func TestTheQuickstartWorksLineByLine(t *testing.T) {
	command := os.Getenv("PGONCE_COMMAND")
	if command == "" {
		command = filepath.Join(root, "build/cli/pgonce")
	}
	if _, err := os.Stat(command); err != nil {
		t.Skip("the command is not built: tools/build.sh build, or PGONCE_COMMAND")
	}
	text, err := os.ReadFile(filepath.Join(root, "docs/quickstart-go.md"))
	if err != nil {
		t.Fatal(err)
	}
	// Sockets have short paths.
	folder, err := os.MkdirTemp("/tmp", "pgonce-quickstart-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(folder)
	if err := os.Chmod(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	script := "set -eum\ntrap '" + command + " dev --stop >/dev/null 2>&1; kill %1 2>/dev/null || true' EXIT\n"
	for _, block := range regexp.MustCompile("(?s)```(sh|go)\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		if block[1] == "sh" {
			script += block[2]
		} else if err := os.WriteFile(filepath.Join(folder, "main.go"), []byte(block[2]), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	_ = listener.Close()
	run := exec.Command("bash", "-c", script)
	run.Dir = folder
	// As a new user has it: nothing that leads libpq's kin anywhere.
	for _, each := range os.Environ() {
		if !strings.HasPrefix(each, "PG") || strings.HasPrefix(each, "PGONCE") {
			run.Env = append(run.Env, each)
		}
	}
	run.Env = append(run.Env, "PGONCE="+root, fmt.Sprintf("PORT=%d", port), "PATH="+filepath.Dir(command)+":"+os.Getenv("PATH"))
	var out, errors bytes.Buffer
	run.Stdout, run.Stderr = &out, &errors
	if err := run.Run(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, out.String(), errors.String())
	}
	said := strings.ReplaceAll(out.String(), "\r", "")
	body := `{"order":1,"item":"lamp"}`
	if strings.Count(said, "HTTP/1.1 201") != 2 || strings.Count(said, "Idempotency-Replayed: true") != 1 || strings.Count(said, body) != 2 ||
		!strings.Contains(said, "HTTP/1.1 422") || !strings.Contains(said, "}1\n") {
		t.Fatalf("%s\n%s", said, errors.String())
	}
}

// SPDX-License-Identifier: PostgreSQL

package control

import "testing"

func TestTransactionControlIsFoundInAnyTextThatHasIt(t *testing.T) {
	for _, text := range []string{"COMMIT", "commit;", " \n\tEnd", "BEGIN ISOLATION LEVEL SERIALIZABLE", "start transaction", "ROLLBACK", "rollback work;", "ROLLBACK TRANSACTION",
		"ROLLBACK AND CHAIN", "ABORT", "PREPARE TRANSACTION 'x'", "COMMIT PREPARED 'x'", "ROLLBACK PREPARED 'x'", "-- it is done\nCOMMIT", "/* a /* b */ c */ COMMIT", ";;COMMIT",
		"INSERT INTO t VALUES (1); COMMIT", "SELECT 'it''s;'; COMMIT", `SELECT E'\'; '; COMMIT`, "SELECT $$ ; $$; COMMIT", "SELECT $a$ $$; $a$; COMMIT", `SELECT "a;b"; COMMIT`,
		"SELECT a$b$c; COMMIT", "SELECT $1; COMMIT", `SELECT '\'; COMMIT`, "SELECT 1 -- ;'\n; COMMIT", "SELECT 1;/* ; */COMMIT", "COMMIT/* */", "CREATE TABLE t (); COMMIT", "SELECT 1;--\nEND"} {
		if !Of(text).Ends {
			t.Errorf("%q was not found", text)
		}
	}
}

func TestWhatOnlyLooksLikeTransactionControlIsNone(t *testing.T) {
	for _, text := range []string{"", " ", ";", "-- COMMIT", "/* COMMIT; */", "SELECT 'x; COMMIT'", "SELECT $$; COMMIT$$", "SELECT $q$; COMMIT; $q$ ;", `SELECT E'\'; COMMIT'`, `SELECT "; COMMIT"`,
		"SAVEPOINT a", "RELEASE SAVEPOINT a", "ROLLBACK TO a", "ROLLBACK TO SAVEPOINT a", "rollback work to a", "INSERT INTO commit VALUES (1)", "SELECT 1 -- ; COMMIT", "PREPARE p AS SELECT 1",
		"ending", "commits", "SELECT CASE WHEN true THEN 1 END; SELECT 2", "DO $$BEGIN PERFORM 1; END$$", "SELECT 1 /* ;\nCOMMIT */",
		"CREATE FUNCTION f() RETURNS void BEGIN ATOMIC SELECT 1; SELECT 2; END; SELECT 1"} {
		if Of(text).Ends {
			t.Errorf("%q was taken for transaction control", text)
		}
	}
}

func TestATextThatSetsTheRoleIsFound(t *testing.T) {
	for text, want := range map[string]bool{"SET LOCAL ROLE reader": true, "set role reader": true, "SELECT 1; SET SESSION AUTHORIZATION x": true, "SELECT set_config('role', 'reader', true)": true,
		"SELECT a_b, pg_catalog.Set_Config('role', 'x', true)": true, "SELECT a_config, set_b, _config": false,
		"INSERT INTO role VALUES (1)": false, "SET LOCAL statement_timeout = 1": false, "SELECT role FROM t": false} {
		if got := Of(text); got.Role != want || got.Ends {
			t.Errorf("%q: %+v", text, got)
		}
	}
}

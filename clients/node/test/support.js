// SPDX-License-Identifier: PostgreSQL
// The servers of the tests: a private PostgreSQL, and a forwarder before it that loses what it is told to (tests/clients).
'use strict';

const {spawn} = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');
const readline = require('node:readline');

const {Pool} = require('pg');

const PROGRAMS = path.join(__dirname, '../../../tests/clients');
const FAULTS = JSON.parse(fs.readFileSync(path.join(__dirname, '../../../spec/cases/faults.json'), 'utf8'));
const REPORTS_MAX = 100; // that are tried within the five seconds
const PYTHON = process.env.PGONCE_PYTHON ?? '/usr/bin/python3';

/** A program that answers each line with a line of JSON, and ends with its standard input. */
class Program {
  constructor(...command) {
    this.process = spawn(PYTHON, command, {stdio: ['pipe', 'pipe', 'inherit']});
    this.answers = readline.createInterface({input: this.process.stdout})[Symbol.asyncIterator]();
  }

  async answer() {
    const {value, done} = await this.answers.next();
    if (done) throw new Error('the program ended');
    return JSON.parse(value);
  }

  tell(line) {
    this.process.stdin.write(`${line}\n`);
    return this.answer();
  }

  close() {
    const ended = new Promise((resolve) => this.process.once('exit', resolve));
    this.process.stdin.end();
    return ended;
  }
}

async function startServer(...options) {
  const program = new Program(path.join(PROGRAMS, 'server.py'), ...options);
  return {program, ...(await program.answer())};
}

async function startForwarder(server) {
  const program = new Program(path.join(PROGRAMS, 'forwarder.py'), server.socket, String(server.port));
  return {program, ...(await program.answer())};
}

function poolOf(server, {host = '127.0.0.1', port = server.port, ...more} = {}) {
  const pool = new Pool({host, port, user: server.user, database: server.database, max: 20, ...more});
  pool.on('error', () => {}); // of an idle connection, which the pool replaces
  return pool;
}

module.exports = {FAULTS, REPORTS_MAX, poolOf, startForwarder, startServer};

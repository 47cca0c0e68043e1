// SPDX-License-Identifier: PostgreSQL
// The key in the value of an Idempotency-Key header: docs/reference/fingerprint.md, held to spec/vectors/keys.json. A bad key is never ignored: the request would run unprotected.
'use strict';

// spec: key-max
const KEY_MAX = 255;
// end of spec

const FAULTS = {
  // spec: key-faults
  empty: 'The key is empty.',
  unterminated: 'The key begins with a quote and has no closing one.',
  bad_escape: 'In a quoted key a backslash must be followed by a quote or a backslash.',
  bad_byte: 'The key\'s header holds a control character or one that is not ASCII.',
  trailing: 'After the quoted key comes something that is not a parameter; a list of keys is not allowed.',
  bad_parameter: 'A parameter after the quoted key is malformed.',
  not_a_string: 'The key must be a quoted string, such as "8e03978e-40d5-43dd-bc93-6894a57f9324"; without quotes it holds characters that are not allowed there, or quotes are required.',
  too_long: 'The key is too long.',
  // end of spec
};
// RFC 8941, section 3.3: integer or decimal, string, token, byte sequence, boolean.
const ITEM = /-?(?:\d{1,12}\.\d{1,3}(?!\d)|\d{1,15}(?![\d.]))|"(?:[^"\\]|\\["\\])*"|[*A-Za-z][A-Za-z0-9!#$%&'*+\-.^_`|~:/]*|:(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}(?:==)?|[A-Za-z0-9+/]{3}=?)?:|\?[01]/y;
const NAME = /; *[a-z*][a-z0-9_\-.*]*/y;

function match(pattern, text, at) {
  pattern.lastIndex = at;
  return pattern.test(text) ? pattern.lastIndex : -1;
}

/** What is wrong with the parameters from `at` on; undefined: nothing. */
function faultOfParameters(text, at) {
  while (text[at] === ';') {
    at = match(NAME, text, at);
    if (at < 0) return FAULTS.bad_parameter;
    if (text[at] === '=') {
      at = match(ITEM, text, at + 1);
      if (at < 0) return FAULTS.bad_parameter;
    }
  }
  return at === text.length ? undefined : FAULTS.trailing;
}

/** {key}, or {fault}: the sentence that says why the header has no key. */
function keyOfHeader(value, {strict = false, lengthMax = KEY_MAX} = {}) {
  if (/[^ -~]/.test(value)) return {fault: FAULTS.bad_byte};
  const text = value.replace(/^ +| +$/g, '');
  if (text === '') return {fault: FAULTS.empty};
  let key = '';
  if (text[0] !== '"') {
    const bad = text.search(/[ "\\,;]/);
    if (strict || (bad >= 0 && bad <= lengthMax)) return {fault: FAULTS.not_a_string};
    key = text;
  } else {
    let at = 1;
    for (; text[at] !== '"'; at++) {
      if (at >= text.length) return {fault: FAULTS.unterminated};
      if (text[at] === '\\') {
        at++;
        if (at >= text.length) return {fault: FAULTS.unterminated};
        if (text[at] !== '"' && text[at] !== '\\') return {fault: FAULTS.bad_escape};
      }
      key += text[at];
      if (key.length > lengthMax) return {fault: FAULTS.too_long};
    }
    const fault = faultOfParameters(text, at + 1);
    if (fault) return {fault};
  }
  if (key.length > lengthMax) return {fault: FAULTS.too_long};
  return key === '' ? {fault: FAULTS.empty} : {key};
}

module.exports = {KEY_MAX, keyOfHeader};

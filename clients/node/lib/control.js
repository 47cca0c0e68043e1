// SPDX-License-Identifier: PostgreSQL
// Which statements of a text control the transaction. They are the attempt's own: an effect whose COMMIT is its own has nothing that guards it.
'use strict';

// Other statements have none of these words. ROLE: finish must not run under another role.
const SUSPECT = /\b(?:begin|start|commit|end|rollback|abort|prepare|role|set_config)\b/i;
const ROLE = /\b(?:role|set_config)\b/i;
// Comments and literals: what stands in them is no statement. A block comment is only opened here, since they nest.
const OPAQUE = /--[^\n]*|\/\*|\b[eE]'(?:[^'\\]|\\[^]|'')*'|'(?:[^']|'')*'|"(?:[^"]|"")*"|(\$(?:[A-Za-z_\u0080-\uffff][\w\u0080-\uffff]*)?\$)[^]*?\1/g;
const COMMENT = /\/\*|\*\//g;
const WORDS = '(?: work| transaction)?';
const KINDS = [
  ['begin', new RegExp(`^(?:begin${WORDS}|start transaction)$`)],
  ['commit', new RegExp(`^(?:commit|end)${WORDS}(?: and no chain)?$`)],
  ['rollback', new RegExp(`^(?:rollback|abort)${WORDS}(?: and no chain)?$`)],
  ['other', new RegExp(`^(?:begin|start transaction|commit|end|abort|prepare transaction|rollback(?!${WORDS} to\\b))\\b`)],
];

/** Behind the block comment that is opened before this place. */
function commentEnd(text, at) {
  COMMENT.lastIndex = at;
  for (let depth = 1; depth > 0;) {
    const found = COMMENT.exec(text);
    if (!found) return text.length;
    depth += found[0] === '/*' ? 1 : -1;
  }
  return COMMENT.lastIndex;
}

/** Without comments and literals, in lower case. */
function bare(text) {
  let rest = '';
  let at = 0;
  OPAQUE.lastIndex = 0;
  for (let found; (found = OPAQUE.exec(text));) {
    const comment = found[0].startsWith('--') || found[0] === '/*';
    rest += `${text.slice(at, found.index)}${comment ? ' ' : ' x '}`;
    if (found[0] === '/*') OPAQUE.lastIndex = commentEnd(text, OPAQUE.lastIndex);
    at = OPAQUE.lastIndex;
  }
  return (rest + text.slice(at)).toLowerCase();
}

const kindOf = (statement) => KINDS.find(([, pattern]) => pattern.test(statement))?.[0];

/**
 * {kind, role}. kind: begin, commit or rollback, if the text is only that; other, if it controls the transaction in another way; undefined, if it does not control it.
 * role: it may change the role.
 */
function controlOf(text) {
  if (typeof text !== 'string' || !SUSPECT.test(text)) return {};
  const statements = bare(text).split(';').map((each) => each.replace(/\s+/g, ' ').trim()).filter((each) => each !== '');
  const kinds = statements.map(kindOf);
  const kind = kinds.length === 1 ? kinds[0] : kinds.some(Boolean) ? 'other' : undefined;
  return {kind, role: ROLE.test(text)};
}

module.exports = {controlOf};

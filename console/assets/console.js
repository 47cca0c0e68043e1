/* SPDX-License-Identifier: PostgreSQL */
/* Keeps pages current and follows searches; each page works without it. It reads the pages: there is no other interface. */
'use strict';
{
	const main = document.getElementById('main'), away = document.getElementById('away'), said = document.getElementById('said');
	const two = (number) => String(number).padStart(2, '0');
	let announced = null;

	const say = (text) => {
		said.textContent = '';
		setTimeout(() => { said.textContent = text; }, 50); /* the same sentence again is heard again */
	};

	/* Times are UTC without this script: then the reader's own, and UTC as the title. */
	const localTimes = (root) => {
		for (const time of root.querySelectorAll('time[datetime]:not([title])')) {
			const at = new Date(time.dateTime);
			if (!isNaN(at)) {
				time.title = time.textContent.trim();
				time.textContent = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ` +
					`${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
			}
		}
	};

	const copyButtons = (root) => {
		for (const named of navigator.clipboard ? root.querySelectorAll('[data-copy]:not([data-copies])') : []) {
			const button = document.createElement('button');
			button.type = 'button';
			button.className = 'copy';
			button.textContent = 'Copy';
			button.setAttribute('aria-label', `Copy ${named.dataset.copy}`);
			button.addEventListener('click', () => navigator.clipboard.writeText(named.textContent).then(
				() => say(`The ${named.dataset.copy} is copied`), () => say('This browser does not allow copying')));
			named.dataset.copies = '';
			named.after(button);
		}
	};

	const announce = () => {
		const text = main.querySelector('[data-announce]')?.textContent.replace(/\s+/g, ' ').trim();
		if (announced !== null && text && text !== announced) {
			say(text);
		}
		announced = text ?? announced;
	};

	const improve = (root) => {
		localTimes(root);
		copyButtons(root);
		announce();
	};

	/* ---- a page that stays current */

	const focusable = 'a[href], button, input, select, textarea, summary';
	let shown = null; /* the HTML of each part, as the server sent it */

	const partsOf = (root) => Array.from(root.children, (part) => part.outerHTML);

	/* Not while the reader has text selected there, or has begun to fill in a form. */
	const isInUse = () => {
		const selection = document.getSelection();
		return (!selection.isCollapsed && main.contains(selection.anchorNode)) ||
			Array.from(main.querySelectorAll('input:not([type=hidden]), select, textarea')).some((field) =>
				field === document.activeElement || (field.type === 'checkbox' || field.type === 'radio' ? field.checked !== field.defaultChecked
					: field.options ? Array.from(field.options).some((option) => option.selected !== option.defaultSelected) && field.selectedIndex !== 0
						: field.value !== field.defaultValue));
	};

	const replacePart = (old, fresh) => {
		const opened = Array.from(old.querySelectorAll('details[open]'), (details) => details.id);
		const place = Array.from(old.querySelectorAll(focusable)).indexOf(document.activeElement);
		const next = document.importNode(fresh, true);
		old.replaceWith(next);
		for (const details of next.querySelectorAll('details')) {
			details.open ||= details.id !== '' && opened.includes(details.id);
		}
		improve(next);
		if (place >= 0) {
			next.querySelectorAll(focusable)[place]?.focus({preventScroll: true});
		}
	};

	const show = (page) => {
		const fresh = page.getElementById('main'), parts = partsOf(fresh);
		if (shown !== null && shown.length === parts.length && main.children.length === parts.length) {
			Array.from(main.children).forEach((part, at) => parts[at] === shown[at] || replacePart(part, fresh.children[at]));
		} else {
			main.replaceChildren(...document.importNode(fresh, true).childNodes);
			improve(main);
		}
		shown = parts;
		document.title = page.title;
	};

	const read = async (address) => {
		const answer = await fetch(address, {headers: {Accept: 'text/html'}, cache: 'no-store', signal: AbortSignal.timeout(15000)});
		return {answer, page: new DOMParser().parseFromString(await answer.text(), 'text/html')};
	};

	const isAway = (text) => {
		if (away.hidden) {
			say(text);
		}
		away.textContent = text;
		away.hidden = false;
	};

	const isBack = () => {
		if (!away.hidden) {
			away.hidden = true;
			say('The database is back: the page is current again');
		}
	};

	const refresh = async () => {
		const live = main.querySelector('[data-live]');
		if (live !== null && !document.hidden && !isInUse()) {
			try {
				const {answer, page} = await read(location.href);
				if (answer.status === 503) {
					isAway(page.getElementById('away')?.textContent.trim() || 'The database does not answer. Trying again.');
				} else if (page.getElementById('main') !== null && !isInUse()) {
					isBack();
					show(page);
				}
			} catch {
				isAway('The console does not answer. Trying again.');
			}
		}
		setTimeout(refresh, 1000 * (away.hidden ? live?.dataset.live || 5 : 2));
	};

	/* ---- a search that goes on: its rows are added until there are enough, or all is read */

	const follow = async () => {
		for (let pages = 0; ; pages++) {
			const rows = main.querySelector('[data-rows]'), next = main.querySelector('a[rel=next][data-follow]');
			const found = rows?.querySelectorAll('tr:not([data-none])').length;
			if (!rows || !next || found >= Number(rows.dataset.rows)) {
				if (pages > 0) {
					say(`Found: ${found}`);
				}
				return;
			}
			const {answer, page} = await read(next.href).catch(() => ({answer: {ok: false}}));
			if (!answer.ok) {
				say('The search stopped. The link below goes on with it.');
				return;
			}
			const more = Array.from(page.querySelectorAll('[data-rows] tr'), (row) => document.importNode(row, true));
			const none = rows.querySelector('[data-none]');
			if (none !== null) {
				none.replaceWith(...more);
			} else {
				rows.append(...more.filter((row) => !row.matches('[data-none]')));
			}
			main.querySelector('[data-progress]').replaceWith(document.importNode(page.querySelector('[data-progress]'), true));
			improve(main);
		}
	};

	/* ---- keys and boxes */

	document.addEventListener('keydown', (event) => {
		const box = document.querySelector('input[type=search]');
		if (event.key === '/' && box && !event.ctrlKey && !event.metaKey && !event.altKey &&
			!event.target.closest('input, select, textarea')) {
			event.preventDefault();
			box.focus();
			box.select();
		}
	});

	/* One box chooses all boxes of a list. It is hidden without this script. */
	const boxOfAll = main.querySelector('[data-all]');
	if (boxOfAll) {
		boxOfAll.hidden = false;
	}
	document.addEventListener('change', (event) => {
		if (event.target.matches('[data-all]')) {
			for (const box of main.querySelectorAll('input[type=checkbox][name=id]')) {
				box.checked = event.target.checked;
			}
		}
	});

	const zone = document.getElementById('zone');
	if (zone) {
		zone.textContent = `Times are of ${Intl.DateTimeFormat().resolvedOptions().timeZone}`;
	}
	shown = partsOf(main);
	improve(main);
	if (main.querySelector('[data-live]')) {
		setTimeout(refresh, 1000 * main.querySelector('[data-live]').dataset.live);
	}
	follow();
}

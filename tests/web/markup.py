"""What is wrong with a page's HTML: what a screen reader, a narrow screen or the security policy needs."""

from html.parser import HTMLParser

VOID = {"br", "hr", "img", "input", "link", "meta", "path"}
FORMLESS = {"hidden", "submit"}


class Markup(HTMLParser):
    """Reads a page. `complaints`: what is wrong with it, a sentence each."""

    def __init__(self, page):
        super().__init__()
        self.complaints = []
        self._open = []  # tags around the present place, with their attributes
        self._count = dict.fromkeys(("h1", "title", "script"), 0)
        self._labelled, self._fields, self._ids = set(), [], []
        self._title = ""
        self.feed(page)
        self.close()
        self._complain_of_the_whole()

    def _say(self, text):
        self.complaints.append(f"line {self.getpos()[0]}: {text}")

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self._count[tag] = self._count.get(tag, 0) + 1
        self._say_what_the_policy_refuses(tag, given)
        if "id" in given:
            self._ids.append(given["id"])
        if tag == "html" and not given.get("lang"):
            self._say("no language")
        if tag == "th" and given.get("scope") not in {"col", "row"}:
            self._say("a head without a scope")
        if tag == "td" and self._in_list() and not given.get("data-label"):
            self._say("a cell without a label")
        if tag == "form" and not self._is_own(given.get("action", "")):
            self._say(f"a form that is sent to {given['action']}")
        if tag == "label":
            self._labelled.add(given.get("for"))
        if tag in {"input", "select", "textarea"} and given.get("type") not in FORMLESS:
            inside = any(name == "label" for name, _ in self._open)
            self._fields.append((given.get("id"), inside or bool(given.get("aria-label")), given))
        if tag not in VOID:
            self._open.append((tag, given | {"captions": 0}))
        if tag == "caption":
            self._open[-2][1]["captions"] += 1

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        if not self._open or self._open[-1][0] != tag:
            self._say(f"</{tag}> closes {self._open[-1][0] if self._open else 'nothing'}")
            return
        _, given = self._open.pop()
        if tag == "table" and given["captions"] != 1:
            self._say("a table without a caption")

    def handle_data(self, data):
        if self._open and self._open[-1][0] == "title":
            self._title += data

    def _in_list(self):
        return any(
            tag == "table" and "list" in (given.get("class") or "").split() for tag, given in self._open
        )

    def _is_own(self, action):
        return not action or (action.startswith("/") and not action.startswith("//"))

    def _say_what_the_policy_refuses(self, tag, given):
        if tag == "style" or "style" in given:
            self._say("an inline style")
        if tag == "script" and not self._is_own(given.get("src") or "https:"):
            self._say("an inline script, or one from elsewhere")
        for name, value in given.items():
            if name.startswith("on"):
                self._say(f"an event handler: {name}")
            if (value or "").strip().lower().startswith("javascript:"):
                self._say(f"a script in {name}")

    def _complain_of_the_whole(self):
        if self._count["h1"] != 1:
            self._say(f"{self._count['h1']} main headings")
        if not self._title.split("·")[0].strip():
            self._say("no title")
        if self._open:
            self._say(f"<{self._open[-1][0]}> stays open")
        for id_ in {one for one in self._ids if self._ids.count(one) > 1}:
            self._say(f"two elements with the id {id_}")
        for id_, is_labelled, given in self._fields:
            if not is_labelled and (id_ is None or id_ not in self._labelled):
                self._say(f"a field without a label: {given}")


class _Live(HTMLParser):
    """Collects what stands in the parts of a page that an open page renews."""

    def __init__(self):
        super().__init__(convert_charrefs=False)
        self.parts, self._name, self._depth = {}, None, 0

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if self._name is None and "data-live" in given:
            self._name, self._depth = given["id"], 0
            self.parts[self._name] = ""
            return
        if self._name is not None:
            self.parts[self._name] += self.get_starttag_text()
            self._depth += tag not in VOID

    def handle_startendtag(self, tag, attrs):
        if self._name is not None:
            self.parts[self._name] += self.get_starttag_text()

    def handle_endtag(self, tag):
        if self._name is None:
            return
        if self._depth == 0:
            self._name = None
            return
        self._depth -= 1
        self.parts[self._name] += f"</{tag}>"

    def handle_data(self, data):
        if self._name is not None:
            self.parts[self._name] += data

    def handle_entityref(self, name):
        self.handle_data(f"&{name};")

    def handle_charref(self, name):
        self.handle_data(f"&#{name};")


def live_parts(page):
    """Return the live parts of a page: by id what stands in them."""
    reader = _Live()
    reader.feed(page)
    return reader.parts

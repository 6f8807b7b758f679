"""The dashboard: a web page for those who run queues. An ASGI application; `cqueue web` serves it.

    from cqueue.web import Access, application

    app = application(client, access=Access(proxy_header="X-Remote-User", host_names={"ops.example.org"}))

It needs the extra `web`. docs/how-to/dashboard.md says what each page shows, what that costs, and who may do
what.
"""

from cqueue.web.access import ANYTHING, LOOK_AND_OPERATE, Access, Password, Role, Token, hashed
from cqueue.web.app import application

__all__ = ["ANYTHING", "LOOK_AND_OPERATE", "Access", "Password", "Role", "Token", "application", "hashed"]

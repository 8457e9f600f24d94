"""edgespec.demo: a chat that shows speculation at work. One page and one protocol, in the Android app and on the desktop.

    page.html          the page: no framework, no network
    service.py         the engine behind it; takes commands, emits events
    protocol.py        what the commands and events are
    server.py          the page and the protocol over loopback, for a desktop and for Termux
    android.py         the same for the app's Java shell
    importing.py       copies a bundle from a file picker, with its hashes verified
    storage.py         conversation and settings on disk

The app has no permission to use the network, and an Android process without it cannot even open a loopback socket. So the page has
two ways to talk: HTTP on the desktop, a Java object in the app.
"""

"""Face swapping live: a page with the camera on the left and the swap on the right, and a server for programs.

references      the allow-list: who may be swapped in, each with a record of consent
marking         label and watermark of what leaves, proven before the first picture
intake, feed    pictures that come, a bounded number; those of the server's own file or camera
guarded         what is not finite is not shown
swapping        one client's stream, in a thread of its own
memories        what a generator holds of the past
overlay         what the overlay shows
live            everybody's streams: who may begin one
messages        what client and server say to each other
server, command HTTP, WebSocket and the command line

A client names a method and a reference of this server; it cannot bring its own.
"""

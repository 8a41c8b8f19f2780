//! Workers' sockets, timers and buffers. Has never heard of HTTP.

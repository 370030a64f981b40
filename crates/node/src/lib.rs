//! Reads which context each thread of Node.js works on, in any process: of programs that publish in the way of
//! the Node.js part of OTEP 4947, where a context belongs to an asynchronous call and not to a thread.

mod walk;

//! Standard input of the MCP server. When the input ends, the capture in progress is stopped.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, ReadBuf, Stdin};

/// The number of requests to stop the capture that is in progress, and a flag that is true once the input has ended.
#[derive(Clone, Default)]
pub(crate) struct Interrupts {
    pub count: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
}

impl Interrupts {
    /// Requests that the capture in progress stop.
    pub(crate) fn stop(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    /// Begins a capture. Returns false if the client has closed the input, so that the capture must not begin.
    pub(crate) fn begin(&self) -> bool {
        // The count is reset before the check, because another thread may notice the end of the input at any time. If
        // the input ends before the check, the check finds `is_over` set. If the input ends later, `end` increases the
        // count again, which stops the capture.
        self.count.store(0, Ordering::SeqCst);
        !self.is_over.load(Ordering::SeqCst)
    }

    fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.stop();
    }
}

/// Standard input. At the end of the input, the capture in progress is stopped. Without this stop, the protocol's
/// library would wait for the end of the capture, which may take long.
pub(crate) struct Input {
    stdin: Stdin,
    interrupts: Interrupts,
}

impl Input {
    pub(crate) fn new(interrupts: Interrupts) -> Self {
        Self {
            stdin: tokio::io::stdin(),
            interrupts,
        }
    }
}

impl AsyncRead for Input {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = to.filled().len();
        let polled = Pin::new(&mut self.stdin).poll_read(context, to);
        let is_end = match &polled {
            Poll::Ready(Ok(())) => to.filled().len() == before && to.remaining() > 0,
            Poll::Ready(Err(_)) => true,
            Poll::Pending => false,
        };
        if is_end {
            self.interrupts.end();
        }
        polled
    }
}

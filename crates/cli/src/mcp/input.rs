//! Standard input, whose end stops what is in progress.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, ReadBuf, Stdin};

/// Requests to stop the capture that is in progress.
#[derive(Clone, Default)]
pub struct Interrupts {
    pub count: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
}

impl Interrupts {
    /// Requests that the capture in progress stops.
    pub fn stop(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    /// Begins a capture; false if the client has gone.
    pub fn begin(&self) -> bool {
        // In this order, as the input may end in between.
        self.count.store(0, Ordering::SeqCst);
        !self.is_over.load(Ordering::SeqCst)
    }

    fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.stop();
    }
}

/// Standard input. The protocol's library waits at its end until all tools have answered, and a capture may take long.
pub struct Input {
    stdin: Stdin,
    interrupts: Interrupts,
}

impl Input {
    pub fn new(interrupts: Interrupts) -> Self {
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

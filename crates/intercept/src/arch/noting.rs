//! Handlers that write a call into the thread's trail (its recent calls, for the step learner). Each kind of call that
//! the trail contains, such as a kernel launch, has its own handlers.

use tllmprof_calls::Wait;
use tllmprof_learn::Trail;

use crate::handlers::Noting;

use super::doors::noting;

/// Defines two handlers for a kind of call. Both write the call into the thread's [`Trail`]; then the first jumps to
/// [`super::doors::count`], the second to [`super::doors::record`]. The entry in the trail is an argument of the call
/// or a fixed number. `counts` names the trail's counter for launches of this kind, if there is one.
macro_rules! handlers {
    ($($both:ident: $name:ident, $recorded:ident = $what:ident($($value:tt)+) $(, counts $counter:ident)?;)*) => {
        $(
            noting!($name, count, $what($($value)+) $(, counts $counter)?);
            noting!($recorded, record, $what($($value)+) $(, counts $counter)?);
            pub(crate) const $both: Noting = [$name, $recorded];
        )*
    };
}

handlers! {
    FIRST_ARGUMENT: note_first, record_first = argument(first), counts LAUNCHES;
    SECOND_ARGUMENT: note_second, record_second = argument(second), counts LAUNCHES;
    GRAPH: note_graph, record_graph = number(Trail::GRAPH), counts GRAPHS;
    COPY_TO_HOST: note_to_host, record_to_host = number(Trail::COPY_TO_HOST);
    COPY_TO_DEVICE: note_to_device, record_to_device = number(Trail::COPY_TO_DEVICE);
    STREAM_WAIT: note_stream, record_stream = number(Trail::wait(Wait::Stream));
    EVENT_WAIT: note_event, record_event = number(Trail::wait(Wait::Event));
    CONTEXT_WAIT: note_context, record_context = number(Trail::wait(Wait::Context));
    BLOCKING_COPY: note_blocking, record_blocking = number(Trail::wait(Wait::CopyToHost));
}

//! Fuzzes lines of the control protocol, which any client may send.

use tllmprof_control::{ControlEvent, Request};

/// Parses each line as a request and as an event. Any line may be refused, but a parsed line that is written out must
/// be parsable again.
pub fn control(bytes: &[u8]) {
    for line in bytes.split(|byte| *byte == b'\n') {
        match Request::from_line(line) {
            Ok(request) => {
                let again = Request::from_line(request.to_line().as_bytes());
                assert_eq!(again, Ok(request));
            }
            Err(why) => {
                assert!(
                    !why.is_empty() && !why.contains(char::is_control),
                    "{why:?}"
                );
                let answer = ControlEvent::refused(why).to_line();
                assert!(
                    ControlEvent::from_line(answer.as_bytes()).is_ok(),
                    "{answer}"
                );
            }
        }
        if let Ok(event) = ControlEvent::from_line(line) {
            assert_eq!(
                ControlEvent::from_line(event.to_line().as_bytes()),
                Ok(event)
            );
        }
    }
}

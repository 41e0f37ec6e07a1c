//! Finds out what is at the other end of a socket: a service to which this process has connected, or the other half of a
//! pair.

use tllmprof_sync::kernel::{self, SocketAddress, SocketEnd};

/// The lowest port that Linux gives to clients by default (`net.ipv4.ip_local_port_range`). Services usually have lower
/// ones.
const FIRST_CLIENT_PORT: u16 = 32_768;
/// The length of a `sockaddr_un` without a name, in bytes: it has only the family.
const UNNAMED: usize = size_of::<libc::sa_family_t>();

/// The other end of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Peer {
    /// A service to which this process has connected.
    Service,
    /// The other half of a pair (socketpair(2)), which is in this process or in one that is related to it.
    Pair,
    /// A client of this process, or something that is not known, as for two high ports.
    Unknown,
}

/// Returns what is at the other end of a socket. For a descriptor that is no socket, this is [`Peer::Unknown`].
pub(crate) fn peer(descriptor: i32) -> Peer {
    let address = |end| kernel::socket_address(descriptor, end);
    let ends = address(SocketEnd::Own).and_then(|own| Some((own, address(SocketEnd::Peer)?)));
    ends.map_or(Peer::Unknown, |(own, peer)| between(&own, &peer))
}

fn between(own: &SocketAddress, peer: &SocketAddress) -> Peer {
    let (own, peer) = (own.bytes(), peer.bytes());
    let family = own.first_chunk().map(|family| u16::from_ne_bytes(*family));
    match family.map(i32::from) {
        // A socket that accepts connections has a name. The sockets of its clients usually have none.
        Some(libc::AF_UNIX) => match (own.len() > UNNAMED, peer.len() > UNNAMED) {
            (false, true) => Peer::Service,
            (false, false) => Peer::Pair,
            (true, _) => Peer::Unknown,
        },
        Some(libc::AF_INET | libc::AF_INET6) => match (port(own), port(peer)) {
            (Some(own), Some(peer)) if own >= FIRST_CLIENT_PORT && peer < FIRST_CLIENT_PORT => {
                Peer::Service
            }
            _ => Peer::Unknown,
        },
        _ => Peer::Unknown,
    }
}

/// Returns the port of an IPv4 or IPv6 address. It follows the family, in network byte order.
fn port(address: &[u8]) -> Option<u16> {
    let bytes = address.get(UNNAMED..)?.first_chunk()?;
    Some(u16::from_be_bytes(*bytes))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    /// Returns the two ends of a connection to a named socket, the client's first, and the socket that accepted it. Each
    /// test passes a different `name`.
    pub(crate) fn connected(name: &str) -> (UnixStream, UnixStream, UnixListener) {
        let name = std::env::temp_dir().join(format!("tllmprof-{name}-{}", std::process::id()));
        let listener = UnixListener::bind(&name).unwrap();
        let client = UnixStream::connect(&name).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        std::fs::remove_file(name).unwrap();
        (client, accepted, listener)
    }

    #[test]
    fn who_connects_to_a_named_socket_is_its_client() {
        let (ours, theirs, listener) = connected("sockets");
        assert_eq!(peer(ours.as_raw_fd()), Peer::Service);
        assert_eq!(peer(theirs.as_raw_fd()), Peer::Unknown);
        assert_eq!(peer(listener.as_raw_fd()), Peer::Unknown);
    }

    #[test]
    fn a_low_port_is_a_service() {
        let mut ports = 20_000..FIRST_CLIENT_PORT;
        let listener = ports.find_map(|port| TcpListener::bind(("127.0.0.1", port)).ok());
        let listener = listener.unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (theirs, _) = listener.accept().unwrap();
        let wanted = match ours.local_addr().unwrap().port() {
            FIRST_CLIENT_PORT.. => Peer::Service,
            _ => Peer::Unknown,
        };
        assert_eq!(peer(ours.as_raw_fd()), wanted);
        assert_eq!(peer(theirs.as_raw_fd()), Peer::Unknown);
    }

    #[test]
    fn a_pair_has_no_names() {
        let (one, other) = UnixStream::pair().unwrap();
        assert_eq!(
            [&one, &other].map(|end| peer(end.as_raw_fd())),
            [Peer::Pair; 2]
        );
    }

    #[test]
    fn what_is_no_socket_has_no_known_peer() {
        let (pipe, _end) = std::io::pipe().unwrap();
        assert_eq!([pipe.as_raw_fd(), -1].map(peer), [Peer::Unknown; 2]);
    }
}

//! Finds out if this process is the client of a socket's connection: it asked another process to connect.

use tllmprof_sync::kernel::{self, SocketAddress, SocketEnd};

/// The lowest port that Linux gives to clients by default (`net.ipv4.ip_local_port_range`). Services usually have lower
/// ones.
const FIRST_CLIENT_PORT: u16 = 32_768;
/// The length of a `sockaddr_un` without a name, in bytes: it has only the family.
const UNNAMED: usize = size_of::<libc::sa_family_t>();

/// Returns true if this process has connected the socket to a service. Returns false if it is not known, as for two
/// high ports or a pair of sockets, and if the descriptor is no socket.
pub(crate) fn is_client(descriptor: i32) -> bool {
    let address = |end| kernel::socket_address(descriptor, end);
    address(SocketEnd::Own)
        .is_some_and(|own| address(SocketEnd::Peer).is_some_and(|peer| is_client_of(&own, &peer)))
}

fn is_client_of(own: &SocketAddress, peer: &SocketAddress) -> bool {
    let (own, peer) = (own.bytes(), peer.bytes());
    let Some(family) = own.first_chunk().map(|family| u16::from_ne_bytes(*family)) else {
        return false;
    };
    match i32::from(family) {
        // A socket that accepts connections has a name. The sockets of its clients usually have none.
        libc::AF_UNIX => own.len() <= UNNAMED && peer.len() > UNNAMED,
        libc::AF_INET | libc::AF_INET6 => match (port(own), port(peer)) {
            (Some(own), Some(peer)) => own >= FIRST_CLIENT_PORT && peer < FIRST_CLIENT_PORT,
            _ => false,
        },
        _ => false,
    }
}

/// Returns the port of an IPv4 or IPv6 address. Both have it behind the family, in network byte order.
fn port(address: &[u8]) -> Option<u16> {
    let bytes = address.get(UNNAMED..)?.first_chunk()?;
    Some(u16::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn who_connects_to_a_named_socket_is_its_client() {
        let name = std::env::temp_dir().join(format!("tllmprof-sockets-{}", std::process::id()));
        let listener = UnixListener::bind(&name).unwrap();
        let ours = UnixStream::connect(&name).unwrap();
        let (theirs, _) = listener.accept().unwrap();
        std::fs::remove_file(name).unwrap();
        assert!(is_client(ours.as_raw_fd()));
        assert!(!is_client(theirs.as_raw_fd()));
        assert!(!is_client(listener.as_raw_fd()));
    }

    #[test]
    fn a_low_port_is_a_service() {
        // The first free port below those of clients.
        let listener = (20_000..FIRST_CLIENT_PORT)
            .find_map(|port| TcpListener::bind(("127.0.0.1", port)).ok());
        let listener = listener.unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (theirs, _) = listener.accept().unwrap();
        assert_eq!(
            is_client(ours.as_raw_fd()),
            ours.local_addr().unwrap().port() >= FIRST_CLIENT_PORT
        );
        assert!(!is_client(theirs.as_raw_fd()));
    }

    #[test]
    fn without_names_nobody_is_known_to_be_the_client() {
        let (one, other) = UnixStream::pair().unwrap();
        let (pipe, _end) = std::io::pipe().unwrap();
        for descriptor in [one.as_raw_fd(), other.as_raw_fd(), pipe.as_raw_fd(), -1] {
            assert!(!is_client(descriptor));
        }
    }
}

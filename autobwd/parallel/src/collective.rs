//! Exchanges in which all ranks take part, made of messages.

use autobwd_core::{
    Element, Result, Transport,
    tensor::{bytes_of, bytes_of_mut},
};

/// The numbers of the other ranks.
fn others(transport: &dyn Transport) -> impl Iterator<Item = usize> {
    let rank = transport.rank();
    (0..transport.ranks()).filter(move |other| *other != rank)
}

/// Part `i` of `send` goes to rank `i`; part `i` of `receive` comes from rank `i`. Parts are equal.
pub(crate) fn all_to_all<T: Element>(transport: &dyn Transport, send: &[T], receive: &mut [T]) -> Result<()> {
    let len = send.len() / transport.ranks();
    if len == 0 {
        return Ok(());
    }
    let own = transport.rank() * len..(transport.rank() + 1) * len;
    receive[own.clone()].copy_from_slice(&send[own]);
    let sent: Vec<_> = others(transport).map(|to| (to, bytes_of(&send[to * len..][..len]))).collect();
    let parts = receive.chunks_exact_mut(len).map(bytes_of_mut).enumerate();
    let mut received: Vec<_> = parts.filter(|(from, _)| *from != transport.rank()).collect();
    transport.transfer(&sent, &mut received)
}

/// `own` goes to all ranks; part `i` of `receive` comes from rank `i`. Parts are equal.
pub(crate) fn all_gather<T: Element>(transport: &dyn Transport, own: &[T], receive: &mut [T]) -> Result<()> {
    gather_parts(transport, own, &vec![own.len(); transport.ranks()], 1, receive)
}

/// `own` goes to all ranks; part `i` of `receive` comes from rank `i`, and has `counts[i]` times `width` elements.
pub(crate) fn gather_parts<T: Element>(
    transport: &dyn Transport,
    own: &[T],
    counts: &[usize],
    width: usize,
    receive: &mut [T],
) -> Result<()> {
    let sent = match own {
        [] => vec![],
        _ => others(transport).map(|to| (to, bytes_of(own))).collect(),
    };
    let (mut received, mut rest) = (vec![], receive);
    for (from, count) in counts.iter().enumerate() {
        let (part, after) = rest.split_at_mut(count * width);
        rest = after;
        match from == transport.rank() {
            true => part.copy_from_slice(own),
            false if part.is_empty() => {}
            false => received.push((from, bytes_of_mut(part))),
        }
    }
    transport.transfer(&sent, &mut received)
}

/// `data` of the rank `root` replaces that of all others.
pub(crate) fn broadcast(transport: &dyn Transport, data: &mut [u8], root: usize) -> Result<()> {
    if data.is_empty() {
        return Ok(());
    }
    if transport.rank() != root {
        return transport.transfer(&[], &mut [(root, data)]);
    }
    let data = &*data;
    let sent: Vec<_> = others(transport).map(|to| (to, data)).collect();
    transport.transfer(&sent, &mut [])
}

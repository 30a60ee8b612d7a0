//! Exchanges in which all ranks take part, made of messages.

use autobwd_core::{
    __private::{bytes_of, bytes_of_mut},
    Element, Result, Transport,
};

/// The numbers of the other ranks.
fn others(transport: &dyn Transport) -> impl Iterator<Item = usize> {
    let rank = transport.rank();
    (0..transport.ranks()).filter(move |other| *other != rank)
}

/// Part `i` of `send` goes to rank `i`; `receive` gets the parts of the other ranks, in their order. Parts are equal, and
/// not empty.
pub(crate) fn all_to_others<T: Element>(
    transport: &dyn Transport,
    send: &[T],
    receive: &mut [T],
) -> Result<()> {
    let len = send.len() / transport.ranks();
    let sent: Vec<_> = others(transport).map(|to| (to, bytes_of(&send[to * len..][..len]))).collect();
    let parts = receive.chunks_exact_mut(len).map(bytes_of_mut);
    let mut received: Vec<_> = others(transport).zip(parts).collect();
    transport.transfer(&sent, &mut received)
}

/// The own part of `data` goes to all ranks; part `i` comes from rank `i`. Parts have `len` elements.
pub(crate) fn share_parts<T: Element>(transport: &dyn Transport, data: &mut [T], len: usize) -> Result<()> {
    let (mut own, mut received) = (None, vec![]);
    for (rank, part) in data.chunks_exact_mut(len).enumerate() {
        match rank == transport.rank() {
            true => own = Some(bytes_of(&*part)),
            false => received.push((rank, bytes_of_mut(part))),
        }
    }
    let sent: Vec<_> = others(transport).zip(own.into_iter().cycle()).collect();
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

/// `data` of the rank `root` replaces `data` of all others.
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

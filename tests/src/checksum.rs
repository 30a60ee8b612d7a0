//! Files whose checksums are taken out, so that changed ones are read.

/// The bytes of a safetensors file, in which an entry of the same length stands in the place of its checksum.
///
/// # Panics
/// If the file has no checksum.
pub fn without_checksum(mut file: Vec<u8>) -> Vec<u8> {
    let entry = b"\"autobwd.checksum\":\"xxh3:";
    let at = file.windows(entry.len()).position(|window| window == entry).expect("a checksum");
    file[at..at + entry.len()].copy_from_slice(b"\"removed.checksum\":\"none:");
    file
}

//! Mutations of messages of Protocol Buffers, without their definitions.

use super::mutate::{Rng, mutate_bytes};

/// A field of a message.
#[derive(Clone)]
struct Field {
    /// The field's number and wire type.
    key: u64,
    value: FieldValue,
}

#[derive(Clone)]
enum FieldValue {
    Number(u64),
    /// The bytes of a number of fixed size.
    Fixed(Vec<u8>),
    Bytes(Vec<u8>),
    Message(Vec<Field>),
}

/// The largest field number that is expected.
const FIELDS: u64 = 32;
const NUMBERS: [i64; 16] = [
    0,
    1,
    -1,
    2,
    3,
    4,
    5,
    8,
    64,
    1 << 16,
    1 << 20,
    i32::MAX as i64,
    i32::MIN as i64,
    1 << 40,
    i64::MAX,
    i64::MIN,
];
const TEXTS: [&str; 8] = ["", "@EMPTY@", "feed", "fetch", "x@GRAD", "a\n\u{1b}[0m`b", "col", "sub_block"];

fn take<'a>(bytes: &mut &'a [u8], length: u64) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(usize::try_from(length).ok()?)?;
    *bytes = rest;
    Some(taken)
}

fn read_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 127) << shift;
        if byte & 128 == 0 {
            return Some(number);
        }
    }
    None
}

fn write_number(mut number: u64, bytes: &mut Vec<u8>) {
    while number > 127 {
        bytes.push(number as u8 | 128);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// The fields of a message, if these bytes may be one. Bytes that may be a message within are taken as such.
fn read(mut bytes: &[u8], depth: usize) -> Option<Vec<Field>> {
    let mut fields = vec![];
    while !bytes.is_empty() {
        let key = read_number(&mut bytes)?;
        let number = key >> 3;
        let value = match key & 7 {
            _ if number == 0 || number > FIELDS => return None,
            0 => FieldValue::Number(read_number(&mut bytes)?),
            1 => FieldValue::Fixed(take(&mut bytes, 8)?.to_vec()),
            5 => FieldValue::Fixed(take(&mut bytes, 4)?.to_vec()),
            2 => {
                let length = read_number(&mut bytes)?;
                let taken = take(&mut bytes, length)?;
                match read(taken, depth + 1).filter(|fields| depth < 8 && !fields.is_empty()) {
                    Some(fields) => FieldValue::Message(fields),
                    None => FieldValue::Bytes(taken.to_vec()),
                }
            }
            _ => return None,
        };
        fields.push(Field { key, value });
    }
    Some(fields)
}

fn write(fields: &[Field], bytes: &mut Vec<u8>) {
    for field in fields {
        write_number(field.key, bytes);
        let inner = match &field.value {
            FieldValue::Number(number) => {
                write_number(*number, bytes);
                continue;
            }
            FieldValue::Fixed(fixed) => {
                bytes.extend(fixed);
                continue;
            }
            FieldValue::Bytes(inner) => inner.clone(),
            FieldValue::Message(fields) => {
                let mut inner = vec![];
                write(fields, &mut inner);
                inner
            }
        };
        write_number(inner.len() as u64, bytes);
        bytes.extend(inner);
    }
}

/// All fields, parents first.
fn all<'a>(fields: &'a [Field], found: &mut Vec<&'a Field>) {
    for field in fields {
        found.push(field);
        if let FieldValue::Message(inner) = &field.value {
            all(inner, found);
        }
    }
}

/// The list with the field of this number, parents first, and its place in it.
fn locate<'a>(fields: &'a mut Vec<Field>, number: &mut usize) -> Option<(&'a mut Vec<Field>, usize)> {
    let mut within = None;
    for (i, field) in fields.iter().enumerate() {
        let mut below = vec![];
        all(std::slice::from_ref(field), &mut below);
        match *number {
            0 => return Some((fields, i)),
            n if n < below.len() => {
                *number -= 1;
                within = Some(i);
                break;
            }
            n => *number = n - below.len(),
        }
    }
    match &mut fields[within?].value {
        FieldValue::Message(inner) => locate(inner, number),
        _ => None,
    }
}

/// A message with one or more changes; `words` are meaningful texts. Other bytes change as such.
pub(super) fn mutate_message(bytes: &[u8], words: &[&str], rng: &mut Rng) -> Vec<u8> {
    let Some(mut fields) = read(bytes, 0).filter(|fields| !fields.is_empty()) else {
        return mutate_bytes(bytes, rng);
    };
    loop {
        let mut found = vec![];
        all(&fields, &mut found);
        let mut number = rng.below(found.len());
        // Most often of the same key, so that the message stays one of the same kind.
        let alike: Vec<&Field> = found.iter().filter(|f| f.key == found[number].key).copied().collect();
        let among = if rng.below(16) == 0 { &found } else { &alike };
        let other = rng.pick(among);
        let other = other.map_or(FieldValue::Number(0), |field| field.value.clone());
        if let Some((list, at)) = locate(&mut fields, &mut number) {
            change(list, at, other, words, rng);
        }
        if fields.is_empty() || rng.below(2) == 0 {
            break;
        }
    }
    let mut bytes = vec![];
    write(&fields, &mut bytes);
    bytes
}

fn change(list: &mut Vec<Field>, at: usize, other: FieldValue, words: &[&str], rng: &mut Rng) {
    let to = rng.below(list.len());
    match rng.below(10) {
        0 => _ = list.remove(at),
        1 => list.insert(to, list[at].clone()),
        2 => list.swap(at, to),
        3 | 4 => list[at].value = other,
        5 if rng.below(8) == 0 => list[at].key = ((1 + rng.below(24)) << 3 | rng.below(6)) as u64,
        _ => match &mut list[at].value {
            FieldValue::Number(number) => {
                *number = match rng.below(3) {
                    0 => number.wrapping_add(1),
                    1 => number.wrapping_sub(1),
                    _ => rng.pick(&NUMBERS).map_or(0, |number| *number as u64),
                }
            }
            FieldValue::Fixed(bytes) => bytes[to % 4] = rng.below(256) as u8,
            FieldValue::Bytes(bytes) => {
                *bytes = match rng.below(4) {
                    0 => rng.pick(&TEXTS).map_or(vec![], |text| text.as_bytes().to_vec()),
                    1 => rng.pick(words).map_or(vec![], |text| text.as_bytes().to_vec()),
                    _ => mutate_bytes(bytes, rng),
                }
            }
            FieldValue::Message(_) => list[at].value = other,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_is_written_as_it_was_read() {
        let paddle = super::super::paddle_inputs().unwrap();
        let programs = paddle.iter().map(|model| super::super::seeds::parts(model)[0].clone());
        for program in programs.chain(super::super::onnx_inputs(None).unwrap()) {
            let mut written = vec![];
            write(&read(&program, 0).unwrap(), &mut written);
            assert!(written == program);
        }
    }
}

//! Options of clients and compilations.

use autobwd::{Error, ErrorKind, Result};

use super::Device;

/// The value of an option.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum OptionValue {
    /// A text.
    String(String),
    /// An integer.
    Int(i64),
    /// A list of integers.
    Ints(Vec<i64>),
    /// A floating point number.
    Float(f32),
    /// A truth value.
    Bool(bool),
}

macro_rules! from {
    ($($type:ty => $variant:ident),*) => {$(
        impl From<$type> for OptionValue {
            fn from(value: $type) -> OptionValue {
                OptionValue::$variant(value.into())
            }
        }
    )*};
}
from! { &str => String, String => String, i64 => Int, Vec<i64> => Ints, f32 => Float, bool => Bool }

/// Options of a client. Their names are those of the plugin, which refuses unknown ones.
///
/// ```
/// use autobwd_xla::pjrt::ClientOptions;
/// let options = ClientOptions::new().set("cpu_device_count", 2_i64);
/// assert_eq!(options.iter().count(), 1);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClientOptions(Vec<(String, OptionValue)>);

impl ClientOptions {
    /// No options.
    pub fn new() -> ClientOptions {
        ClientOptions::default()
    }

    /// Sets an option. The plugin needs the exact type: `cpu_device_count` is an `i64`.
    #[must_use]
    pub fn set(mut self, name: &str, value: impl Into<OptionValue>) -> ClientOptions {
        self.0.retain(|(own, _)| own != name);
        self.0.push((name.into(), value.into()));
        self
    }

    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &OptionValue)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }
}

/// Options of a compilation: the devices, for replicas of the program or for parts of its tensors, and flags of XLA.
///
/// Flags in the environment variable `XLA_FLAGS` end the process if they are unknown; those set here are an error.
#[derive(Clone, Debug)]
pub struct CompileOptions {
    devices: Vec<Device>,
    is_partitioned: bool,
    flags: Vec<(String, OptionValue)>,
}

impl CompileOptions {
    /// Compiles for these devices, with a replica of the program on each.
    pub fn new(devices: &[Device]) -> CompileOptions {
        CompileOptions { devices: devices.to_vec(), is_partitioned: false, flags: vec![] }
    }

    /// Compiles one program for all of these devices, among which its tensors are divided as `mhlo.sharding` says.
    pub fn partitions(devices: &[Device]) -> CompileOptions {
        CompileOptions { is_partitioned: true, ..CompileOptions::new(devices) }
    }

    /// Sets a flag of XLA, for this compilation only.
    #[must_use]
    pub fn flag(mut self, name: &str, value: impl Into<OptionValue>) -> CompileOptions {
        self.flags.retain(|(own, _)| own != name);
        self.flags.push((name.into(), value.into()));
        self
    }

    pub(crate) fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The number of replicas and of partitions.
    pub(crate) fn counts(&self) -> (usize, usize) {
        if self.is_partitioned { (1, self.devices.len()) } else { (self.devices.len(), 1) }
    }

    /// The message `CompileOptionsProto` of XLA.
    ///
    /// It is never empty: XLA ends the process if the number of replicas is 0.
    pub(super) fn encode(&self) -> Result<Vec<u8>> {
        if self.devices.is_empty() {
            return Err(Error::new(ErrorKind::Device, "a compilation needs at least one device"));
        }
        let (replicas, partitions) = self.counts();
        let mut assignment = Message::default();
        assignment.number(1, replicas as u64);
        assignment.number(2, partitions as u64);
        for devices in self.devices.chunks(replicas) {
            let mut ids = Message::default();
            devices.iter().for_each(|device| ids.number(1, device.id() as u64));
            assignment.message(3, &ids);
        }
        let mut build = Message::default();
        build.number(4, replicas as u64);
        build.number(5, partitions as u64);
        build.number(6, self.is_partitioned.into());
        build.message(9, &assignment);
        let mut options = Message::default();
        options.message(3, &build);
        for (name, value) in &self.flags {
            let mut encoded = Message::default();
            match value {
                OptionValue::String(text) => encoded.bytes(1, text.as_bytes()),
                OptionValue::Bool(bool) => encoded.number(2, (*bool).into()),
                OptionValue::Int(int) => encoded.number(3, *int as u64),
                OptionValue::Float(float) => encoded.double(4, (*float).into()),
                OptionValue::Ints(_) => {
                    return Err(Error::new(ErrorKind::Device, format!("flag `{name}` cannot be a list")));
                }
            }
            let mut entry = Message::default();
            entry.bytes(1, name.as_bytes());
            entry.message(2, &encoded);
            options.message(7, &entry);
        }
        Ok(options.0)
    }
}

/// A message in the wire format of protocol buffers.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn number(&mut self, field: u64, value: u64) {
        self.varint(field << 3);
        self.varint(value);
    }

    fn double(&mut self, field: u64, value: f64) {
        self.varint(field << 3 | 1);
        self.0.extend(value.to_le_bytes());
    }

    fn bytes(&mut self, field: u64, value: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(value.len() as u64);
        self.0.extend(value);
    }

    fn message(&mut self, field: u64, value: &Message) {
        self.bytes(field, &value.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_the_wire_format() {
        let mut message = Message::default();
        message.number(4, 300);
        message.bytes(7, b"ab");
        message.double(4, 1.0);
        assert_eq!(message.0, [0x20, 0xac, 2, 0x3a, 2, b'a', b'b', 0x21, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f]);
    }

    #[test]
    fn no_device_is_an_error() {
        let e = CompileOptions::new(&[]).encode().unwrap_err();
        assert_eq!(e.to_string(), "a compilation needs at least one device");
    }
}

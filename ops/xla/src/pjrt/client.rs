//! Clients and their devices.

#![allow(unsafe_code)]

use std::{fmt, path::Path, sync::Arc};

use autobwd::{Error, ErrorKind, Result, Tensor};

use super::{
    ClientOptions, CompileOptions, DeviceBuffer, Executable, OptionValue, Plugin,
    sys::{
        ClientAddressableDevices, ClientCreate, ClientDestroy, ClientPlatformName, ClientPlatformVersion,
        ClientProcessIndex, DeviceDescriptionDebugString, DeviceDescriptionId, DeviceDescriptionKind,
        DeviceGetDescription, DeviceMemoryStats, NamedValue, NamedValueData, RawClient, RawDevice,
        RawDeviceDescription, value_kind,
    },
    table::{Handle, Table, array, text},
};

/// The devices of a plugin that this process uses. Buffers and executables keep their client.
///
/// Clones are the same client.
#[derive(Clone)]
pub struct Client(Arc<ClientState>);

struct ClientState {
    plugin: Plugin,
    client: Handle<RawClient>,
    devices: Vec<DeviceState>,
    platform: String,
    platform_version: String,
    process_index: i32,
}

struct DeviceState {
    device: Handle<RawDevice>,
    id: i64,
    kind: String,
    description: String,
}

/// A device of a [`Client`].
#[derive(Clone)]
pub struct Device {
    client: Client,
    index: usize,
    // A copy of the client's, so that no access can fail.
    device: Handle<RawDevice>,
    id: i64,
}

/// The use of a device's memory, in bytes. Plugins leave out what they do not measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceMemory {
    /// Allocated now.
    pub in_use: u64,
    /// The highest value of `in_use` so far.
    pub peak: Option<u64>,
    /// The most that can be allocated.
    pub limit: Option<u64>,
}

/// Destroys a client when it is dropped.
struct OwnedClient(Table, Handle<RawClient>);

impl Drop for ClientState {
    fn drop(&mut self) {
        // SAFETY: buffers, executables and devices keep the client, so none is left.
        let _ = unsafe {
            self.plugin.table().call(&mut ClientDestroy { client: self.client.raw(), ..Default::default() })
        };
    }
}

impl Drop for OwnedClient {
    fn drop(&mut self) {
        // SAFETY: `Client::new` has failed, and nothing refers to the client.
        let _ = unsafe { self.0.call(&mut ClientDestroy { client: self.1.raw(), ..Default::default() }) };
    }
}

impl Client {
    pub(super) fn new(plugin: &Plugin, options: &ClientOptions) -> Result<Client> {
        check_device_count(options)?;
        let table = plugin.table();
        let values: Vec<NamedValue> = options.iter().map(|(name, value)| named_value(name, value)).collect();
        let mut create =
            ClientCreate { create_options: values.as_ptr(), num_options: values.len(), ..Default::default() };
        // SAFETY: names and values are those of `options`, which outlives the call; there are no callbacks.
        unsafe { table.call(&mut create) }
            .map_err(|e| e.error(format_args!("cannot make a client of `{}`", plugin.path().display())))?;
        let client = Handle::new(create.client, "client")?;
        let owned = OwnedClient(table, client);
        let state = ClientState {
            plugin: plugin.clone(),
            client,
            devices: devices(table, client)?,
            platform: platform(table, client)?,
            platform_version: platform_version(table, client)?,
            process_index: process_index(table, client)?,
        };
        // From here on, `state` owns the client.
        std::mem::forget(owned);
        Ok(Client(Arc::new(state)))
    }

    /// Loads a plugin and makes a client without options; a plugin for the CPU makes one device of it, in place of several
    /// virtual ones, which share its cores and are slower.
    ///
    /// # Errors
    /// Those of [`Plugin::load`] and [`Plugin::client`].
    pub fn load(path: impl AsRef<Path>) -> Result<Client> {
        let plugin = Plugin::load(path)?;
        let client = plugin.client(&ClientOptions::new())?;
        match client.platform_name() {
            "cpu" if client.devices().len() > 1 => {
                plugin.client(&ClientOptions::new().set("cpu_device_count", 1_i64))
            }
            _ => Ok(client),
        }
    }

    /// The plugin.
    pub fn plugin(&self) -> &Plugin {
        &self.0.plugin
    }

    /// The kind of its devices: `cpu`, `cuda`, `tpu`.
    pub fn platform_name(&self) -> &str {
        &self.0.platform
    }

    /// The version of the platform, in the plugin's words. It changes with the compiler.
    pub fn platform_version(&self) -> &str {
        &self.0.platform_version
    }

    /// The index of this process among those that share the devices; 0 for a single one.
    pub fn process_index(&self) -> i32 {
        self.0.process_index
    }

    /// The devices of this process.
    pub fn devices(&self) -> Vec<Device> {
        let all = self.0.devices.iter().enumerate();
        all.map(|(index, d)| Device { client: self.clone(), index, device: d.device, id: d.id }).collect()
    }

    /// A device, by its position in [`devices`](Client::devices).
    ///
    /// # Errors
    /// There are fewer devices.
    pub fn device(&self, index: usize) -> Result<Device> {
        let n = self.0.devices.len();
        self.devices().into_iter().nth(index).ok_or_else(|| {
            Error::new(
                ErrorKind::Device,
                format!("the client has {n} devices, so there is no device {index}"),
            )
        })
    }

    /// Compiles a StableHLO module, with a replica on each device of the options.
    ///
    /// # Errors
    /// Text that does not parse (the message has line and column) or does not compile; arguments or results that tensors
    /// cannot hold; a device of another client.
    pub fn compile(&self, text: &str, options: &CompileOptions) -> Result<Executable> {
        Executable::compile(self, text, options)
    }

    /// Loads an executable that [`Executable::to_bytes`] has returned, on the devices that it was compiled for. The bytes
    /// contain machine code, so they must be trusted.
    ///
    /// # Errors
    /// The bytes are not an executable, are damaged, or come from another platform or version.
    pub fn load_executable(&self, bytes: &[u8]) -> Result<Executable> {
        Executable::from_bytes(self, bytes)
    }

    pub(super) fn table(&self) -> Table {
        self.0.plugin.table()
    }

    pub(super) fn handle(&self) -> Handle<RawClient> {
        self.0.client
    }

    pub(super) fn is_same(&self, other: &Client) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The device with this handle.
    pub(super) fn find(&self, device: *mut RawDevice) -> Option<Device> {
        self.devices().into_iter().find(|own| own.device.raw() == device)
    }
}

impl Device {
    /// Loads a plugin and returns its first device, as [`Client::load`] does.
    ///
    /// # Errors
    /// Those of [`Client::load`]; a client without devices.
    pub fn load(path: impl AsRef<Path>) -> Result<Device> {
        Client::load(path)?.device(0)
    }

    /// The client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Its position in [`Client::devices`].
    pub fn index(&self) -> usize {
        self.index
    }

    /// Its number among the devices of all processes.
    pub fn id(&self) -> i64 {
        self.id
    }

    /// The model of the device, in the plugin's words.
    pub fn kind(&self) -> &str {
        self.state().map_or("", |d| &d.kind)
    }

    /// A description, in the plugin's words.
    pub fn description(&self) -> &str {
        self.state().map_or("", |d| &d.description)
    }

    /// The use of its memory; `None` if the plugin does not measure it.
    ///
    /// # Errors
    /// The plugin's.
    pub fn memory(&self) -> Result<Option<DeviceMemory>> {
        let mut stats = DeviceMemoryStats { device: self.device.raw(), ..Default::default() };
        // SAFETY: the client, which this keeps, keeps its devices.
        match unsafe { self.client.table().call(&mut stats) } {
            Err(e) if e.is_unimplemented() => return Ok(None),
            done => done.map_err(|e| e.error("cannot read the use of memory"))?,
        }
        let bytes = |n: i64| u64::try_from(n).unwrap_or(0);
        Ok(Some(DeviceMemory {
            in_use: bytes(stats.bytes_in_use),
            peak: stats.peak_bytes_in_use_is_set.then(|| bytes(stats.peak_bytes_in_use)),
            limit: stats.bytes_limit_is_set.then(|| bytes(stats.bytes_limit)),
        }))
    }

    /// Compiles a StableHLO module for this device.
    ///
    /// # Errors
    /// As [`Client::compile`].
    pub fn compile(&self, text: &str) -> Result<Executable> {
        self.client.compile(text, &CompileOptions::new(std::slice::from_ref(self)))
    }

    /// Copies a tensor to the device.
    ///
    /// # Errors
    /// The plugin's: memory runs out.
    pub fn upload(&self, tensor: &Tensor) -> Result<DeviceBuffer> {
        DeviceBuffer::upload(tensor, self)
    }

    pub(super) fn handle(&self) -> Handle<RawDevice> {
        self.device
    }

    fn state(&self) -> Option<&DeviceState> {
        self.client.0.devices.get(self.index)
    }
}

impl PartialEq for Client {
    fn eq(&self, other: &Client) -> bool {
        self.is_same(other)
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Device) -> bool {
        self.client.is_same(&other.client) && self.device == other.device
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({}, {} devices)", self.0.platform, self.0.devices.len())
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.description())
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.client.platform_name(), self.id)
    }
}

/// Checks the number of virtual devices: the plugin for the CPU ends the process if it cannot allocate them.
fn check_device_count(options: &ClientOptions) -> Result<()> {
    let name = "cpu_device_count";
    match options.iter().find(|(own, _)| *own == name) {
        Some((_, OptionValue::Int(n))) if !(1..=1024).contains(n) => {
            Err(Error::new(ErrorKind::Device, format!("option `{name}` is {n}; it must be from 1 to 1024")))
        }
        _ => Ok(()),
    }
}

/// An option in C; it refers to the given texts and lists.
fn named_value(name: &str, value: &OptionValue) -> NamedValue {
    let (kind, data, value_size) = match value {
        OptionValue::String(text) => {
            (value_kind::STRING, NamedValueData { string: text.as_ptr() }, text.len())
        }
        OptionValue::Int(int) => (value_kind::INT, NamedValueData { int: *int }, 1),
        OptionValue::Ints(ints) => (value_kind::INTS, NamedValueData { ints: ints.as_ptr() }, ints.len()),
        OptionValue::Float(float) => (value_kind::FLOAT, NamedValueData { float: *float }, 1),
        OptionValue::Bool(bool) => (value_kind::BOOL, NamedValueData { bool: *bool }, 1),
    };
    NamedValue { name: name.as_ptr(), name_size: name.len(), kind, data, value_size, ..Default::default() }
}

fn devices(table: Table, client: Handle<RawClient>) -> Result<Vec<DeviceState>> {
    let mut given = ClientAddressableDevices { client: client.raw(), ..Default::default() };
    // SAFETY: the client is alive, and keeps the array.
    let devices = unsafe {
        table.call(&mut given).map_err(|e| e.error("cannot list the devices"))?;
        array(given.addressable_devices, given.num_addressable_devices)
    };
    devices.iter().map(|device| device_state(table, *device)).collect()
}

fn device_state(table: Table, device: *mut RawDevice) -> Result<DeviceState> {
    let device = Handle::new(device, "device")?;
    let mut given = DeviceGetDescription { device: device.raw(), ..Default::default() };
    // SAFETY: the device is one of a live client.
    unsafe { table.call(&mut given) }.map_err(|e| e.error("cannot describe a device"))?;
    let description: Handle<RawDeviceDescription> = Handle::new(given.device_description, "description")?;
    let device_description = description.raw();
    let mut id = DeviceDescriptionId { device_description, ..Default::default() };
    let mut kind = DeviceDescriptionKind { device_description, ..Default::default() };
    let mut debug = DeviceDescriptionDebugString { device_description, ..Default::default() };
    // SAFETY: the device keeps its description, and the description its texts.
    unsafe {
        table.call(&mut id).map_err(|e| e.error("cannot describe a device"))?;
        table.call(&mut kind).map_err(|e| e.error("cannot describe a device"))?;
        table.call(&mut debug).map_err(|e| e.error("cannot describe a device"))?;
        Ok(DeviceState {
            device,
            id: id.id.into(),
            kind: text(kind.device_kind, kind.device_kind_size),
            description: text(debug.debug_string, debug.debug_string_size),
        })
    }
}

fn platform(table: Table, client: Handle<RawClient>) -> Result<String> {
    let mut given = ClientPlatformName { client: client.raw(), ..Default::default() };
    // SAFETY: the client is alive, and keeps the text.
    unsafe {
        table.call(&mut given).map_err(|e| e.error("cannot read the name of the platform"))?;
        Ok(text(given.platform_name, given.platform_name_size))
    }
}

fn platform_version(table: Table, client: Handle<RawClient>) -> Result<String> {
    let mut given = ClientPlatformVersion { client: client.raw(), ..Default::default() };
    // SAFETY: the client is alive, and keeps the text.
    unsafe {
        table.call(&mut given).map_err(|e| e.error("cannot read the version of the platform"))?;
        Ok(text(given.platform_version, given.platform_version_size))
    }
}

fn process_index(table: Table, client: Handle<RawClient>) -> Result<i32> {
    let mut given = ClientProcessIndex { client: client.raw(), ..Default::default() };
    // SAFETY: the client is alive.
    unsafe { table.call(&mut given) }.map_err(|e| e.error("cannot read the index of the process"))?;
    Ok(given.process_index)
}

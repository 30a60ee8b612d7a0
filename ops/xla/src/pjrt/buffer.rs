//! Values on devices.

#![allow(unsafe_code)]

use std::{borrow::Cow, ffi::c_void, fmt};

use autobwd::{DType, Error, ErrorKind, Meta, Result, Tensor};

use super::{
    Client, Device,
    sys::{
        BufferCopyToDevice, BufferDestroy, BufferGetMemoryLayout, BufferIsDeleted, BufferIsOnCpu,
        BufferOnDeviceSizeInBytes, BufferReadyEvent, BufferToHostBuffer, BufferUnsafePointer,
        COPY_DURING_CALL, ClientBufferFromHostBuffer, EventDestroy, EventIsReady, MemoryLayout, RawBuffer,
        TILED, TiledLayout,
    },
    table::{Handle, Table, array},
};

/// A tensor in the memory of a device.
///
/// Its value may still be computed when the buffer exists: a download waits for it. A buffer never changes; an
/// [`Executable`](super::Executable) may take its memory if the buffer is passed by value.
pub struct DeviceBuffer {
    device: Device,
    buffer: Handle<RawBuffer>,
    dtype: DType,
    dims: Box<[usize]>,
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        let mut destroy = BufferDestroy { buffer: self.buffer.raw(), ..Default::default() };
        // SAFETY: this owns the buffer; the plugin keeps the memory until running programs have read it.
        let _ = unsafe { self.table().call(&mut destroy) };
    }
}

impl DeviceBuffer {
    /// Copies a tensor to a device.
    ///
    /// # Errors
    /// The plugin's: memory runs out.
    pub fn upload(tensor: &Tensor, device: &Device) -> Result<DeviceBuffer> {
        let bytes = canonical_bytes(tensor);
        let dims = wire_dims(tensor.dims())?;
        let mut upload = ClientBufferFromHostBuffer {
            client: device.client().handle().raw(),
            data: bytes.as_ptr().cast::<c_void>(),
            kind: element_code(tensor.dtype()),
            dims: dims.as_ptr(),
            num_dims: dims.len(),
            host_buffer_semantics: COPY_DURING_CALL,
            device: device.handle().raw(),
            ..Default::default()
        };
        let doing = format_args!("cannot upload {} to {device}", tensor.meta());
        let table = device.client().table();
        // SAFETY: client and device are alive; `bytes` has the elements of this dtype and these dimensions in row-major
        // order, and the plugin copies them before the call returns.
        unsafe { table.call(&mut upload) }.map_err(|e| e.error(doing))?;
        let buffer = Handle::new(upload.buffer, "buffer")?;
        let buffer = DeviceBuffer {
            device: device.clone(),
            buffer,
            dtype: tensor.dtype(),
            dims: tensor.dims().into(),
        };
        // SAFETY: the call has returned the event.
        unsafe { table.await_event(upload.done_with_host_buffer) }.map_err(|e| e.error(doing))?;
        Ok(buffer)
    }

    /// The owner of a buffer that the plugin has returned.
    ///
    /// # Safety
    /// The buffer is alive, on this device, and nothing else destroys it.
    pub(super) unsafe fn own(
        buffer: Handle<RawBuffer>,
        device: &Device,
        dtype: DType,
        dims: &[usize],
    ) -> DeviceBuffer {
        DeviceBuffer { device: device.clone(), buffer, dtype, dims: dims.into() }
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Dimensions.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// Dtype and shape.
    pub fn meta(&self) -> Meta {
        Meta::new(self.dtype, &*self.dims)
    }

    /// The device that holds it.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Copies the elements to a tensor; waits until they are computed.
    ///
    /// # Errors
    /// The failure of the program that computes it; memory runs out.
    pub fn download(&self) -> Result<Tensor> {
        self.wait()?;
        let mut tensor = Tensor::zeros(self.dtype, &self.dims)?;
        let bytes = tensor.bytes_mut();
        match self.host_bytes(bytes.len()) {
            Some(own) => bytes.copy_from_slice(own),
            None => self.copy_to_host(bytes)?,
        }
        Ok(tensor)
    }

    /// Lets the plugin copy the elements in row-major order.
    fn copy_to_host(&self, bytes: &mut [u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        // On a device, dimensions may be in another order.
        let minor_to_major: Vec<i64> = self.minor_to_major().collect();
        let layout = MemoryLayout {
            tiled: TiledLayout {
                minor_to_major: minor_to_major.as_ptr(),
                minor_to_major_size: minor_to_major.len(),
                ..Default::default()
            },
            kind: TILED,
            ..Default::default()
        };
        let mut download = BufferToHostBuffer {
            src: self.buffer.raw(),
            host_layout: &layout,
            dst: bytes.as_mut_ptr().cast::<c_void>(),
            dst_size: bytes.len(),
            ..Default::default()
        };
        let doing = format_args!("cannot download {} from {}", self.meta(), self.device);
        // SAFETY: the buffer is alive; the plugin checks `dst_size`, and writes that many bytes before the event.
        unsafe {
            self.table().call(&mut download).map_err(|e| e.error(doing))?;
            self.table().await_event(download.event).map_err(|e| e.error(doing))
        }
    }

    /// The elements of a value that is computed, if they are in the memory of the host in row-major order: a copy by the
    /// plugin takes its threads, which is slow for small values.
    fn host_bytes(&self, bytes: usize) -> Option<&[u8]> {
        let buffer = self.buffer.raw();
        let mut on_cpu = BufferIsOnCpu { buffer, ..Default::default() };
        let mut layout = BufferGetMemoryLayout { buffer, ..Default::default() };
        let mut size = BufferOnDeviceSizeInBytes { buffer, ..Default::default() };
        let mut address = BufferUnsafePointer { buffer, ..Default::default() };
        // SAFETY: the buffer is alive, and keeps its layout. Its memory is not written any more, and stays while the
        // buffer is borrowed: only a donation frees it, which takes the buffer itself or the only reference to its scope.
        unsafe {
            self.table().call(&mut on_cpu).ok().filter(|()| on_cpu.is_on_cpu)?;
            self.table().call(&mut layout).ok()?;
            let tiled = &layout.layout.tiled;
            let minor_to_major = array(tiled.minor_to_major, tiled.minor_to_major_size);
            let is_row_major = minor_to_major.iter().copied().eq(self.minor_to_major());
            if layout.layout.kind != TILED || tiled.num_tiles != 0 || !is_row_major {
                return None;
            }
            self.table().call(&mut size).ok().filter(|()| size.on_device_size_in_bytes >= bytes)?;
            self.table().call(&mut address).ok().filter(|()| address.buffer_pointer != 0)?;
            Some(array(std::ptr::with_exposed_provenance(address.buffer_pointer), bytes))
        }
    }

    /// Row-major order.
    fn minor_to_major(&self) -> impl Iterator<Item = i64> {
        (0..self.dims.len() as i64).rev()
    }

    /// Waits until the value is computed.
    ///
    /// # Errors
    /// The failure of the program that computes it.
    pub fn wait(&self) -> Result<()> {
        let mut ready = BufferReadyEvent { buffer: self.buffer.raw(), ..Default::default() };
        let doing = format_args!("cannot compute {} on {}", self.meta(), self.device);
        // SAFETY: the buffer is alive, and the first call returns an event.
        unsafe {
            self.table().call(&mut ready).map_err(|e| e.error(doing))?;
            self.table().await_event(ready.event).map_err(|e| e.error(doing))
        }
    }

    /// Whether the value is computed.
    ///
    /// # Errors
    /// The plugin's.
    pub fn is_ready(&self) -> Result<bool> {
        let mut ready = BufferReadyEvent { buffer: self.buffer.raw(), ..Default::default() };
        let doing = "cannot ask whether a value is computed";
        // SAFETY: the buffer is alive; the event is used until it is destroyed.
        unsafe {
            self.table().call(&mut ready).map_err(|e| e.error(doing))?;
            let mut asked = EventIsReady { event: ready.event, ..Default::default() };
            let answer = self.table().call(&mut asked);
            let destroyed = self.table().call(&mut EventDestroy { event: ready.event, ..Default::default() });
            answer.and(destroyed).map_err(|e| e.error(doing))?;
            Ok(asked.is_ready)
        }
    }

    /// Whether the memory has been given away: a run that took this buffer has failed after it began.
    ///
    /// # Errors
    /// The plugin's.
    pub fn is_deleted(&self) -> Result<bool> {
        let mut asked = BufferIsDeleted { buffer: self.buffer.raw(), ..Default::default() };
        // SAFETY: the buffer is alive.
        unsafe { self.table().call(&mut asked) }.map_err(|e| e.error("cannot ask for a buffer's state"))?;
        Ok(asked.is_deleted)
    }

    /// The bytes that it takes on the device.
    ///
    /// # Errors
    /// The plugin's.
    pub fn bytes_on_device(&self) -> Result<usize> {
        let mut asked = BufferOnDeviceSizeInBytes { buffer: self.buffer.raw(), ..Default::default() };
        // SAFETY: the buffer is alive.
        unsafe { self.table().call(&mut asked) }.map_err(|e| e.error("cannot ask for a buffer's size"))?;
        Ok(asked.on_device_size_in_bytes)
    }

    /// The address in the device's memory, to compare with that of another buffer.
    ///
    /// # Errors
    /// The plugin's: devices without addresses.
    pub fn address(&self) -> Result<usize> {
        let mut asked = BufferUnsafePointer { buffer: self.buffer.raw(), ..Default::default() };
        // SAFETY: the buffer is alive; the address is not read through.
        unsafe { self.table().call(&mut asked) }.map_err(|e| e.error("cannot ask for a buffer's address"))?;
        Ok(asked.buffer_pointer)
    }

    /// A copy on another device of the same client.
    ///
    /// # Errors
    /// The plugin's; a device of another client.
    pub fn copy_to(&self, device: &Device) -> Result<DeviceBuffer> {
        let doing = format_args!("cannot copy {} from {} to {device}", self.meta(), self.device);
        if !self.client().is_same(device.client()) {
            return Err(Error::new(ErrorKind::Device, format!("{doing}: it is a device of another client")));
        }
        if *device == self.device {
            return DeviceBuffer::upload(&self.download()?, device);
        }
        let mut copy = BufferCopyToDevice {
            buffer: self.buffer.raw(),
            dst_device: device.handle().raw(),
            ..Default::default()
        };
        // SAFETY: the buffer is alive, and the device is of the same client.
        unsafe { self.table().call(&mut copy) }.map_err(|e| e.error(doing))?;
        let buffer = Handle::new(copy.dst_buffer, "buffer")?;
        // SAFETY: the call has returned the buffer, on this device.
        Ok(unsafe { DeviceBuffer::own(buffer, device, self.dtype, &self.dims) })
    }

    pub(super) fn handle(&self) -> Handle<RawBuffer> {
        self.buffer
    }

    pub(super) fn client(&self) -> &Client {
        self.device.client()
    }

    fn table(&self) -> Table {
        self.device.client().table()
    }
}

impl fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceBuffer({} on {})", self.meta(), self.device)
    }
}

/// The elements of a tensor as devices need them. A bool of a tensor is any byte; of a device, 0 or 1.
fn canonical_bytes(tensor: &Tensor) -> Cow<'_, [u8]> {
    let bytes = tensor.bytes();
    match tensor.dtype() == DType::Bool && bytes.iter().any(|byte| *byte > 1) {
        true => bytes.iter().map(|byte| u8::from(*byte != 0)).collect(),
        false => Cow::Borrowed(bytes),
    }
}

fn wire_dims(dims: &[usize]) -> Result<Vec<i64>> {
    let wire: Result<Vec<i64>, _> = dims.iter().map(|d| i64::try_from(*d)).collect();
    wire.map_err(|_| Error::new(ErrorKind::Shape, format!("shape {dims:?} exceeds 64-bit dimensions")))
}

/// The code of a dtype (`PJRT_Buffer_Type`).
fn element_code(dtype: DType) -> u32 {
    match dtype {
        DType::Bool => 1,
        DType::I32 => 4,
        DType::I64 => 5,
        DType::U8 => 6,
        DType::F16 => 10,
        DType::F32 => 11,
        DType::F64 => 12,
        DType::BF16 => 13,
    }
}

/// The dtype of a code.
///
/// # Errors
/// An element type that tensors cannot hold: its name in XLA.
pub(super) fn dtype_of_code(code: u32) -> Result<DType, String> {
    const NAMES: [&str; 16] = [
        "invalid", "pred", "s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64", "f16", "f32", "f64", "bf16",
        "c64", "c128",
    ];
    let name = || NAMES.get(code as usize).map_or_else(|| format!("number {code}"), |name| (*name).into());
    DType::ALL.into_iter().find(|dtype| element_code(*dtype) == code).ok_or_else(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pjrt::Plugin;

    #[test]
    #[ignore = "needs AUTOBWD_PJRT_PLUGIN"]
    fn copies_of_the_plugin_equal_the_values_in_place() {
        let plugin = Plugin::from_env().unwrap().expect("AUTOBWD_PJRT_PLUGIN is set");
        let device = plugin.client(&Default::default()).unwrap().device(0).unwrap();
        let tensors = [
            Tensor::from_vec([2, 3], vec![1_i32, 2, 3, 4, 5, 6]).unwrap(),
            Tensor::from_vec([3, 0], Vec::<f64>::new()).unwrap(),
            Tensor::scalar(7_u8).unwrap(),
        ];
        for tensor in tensors {
            let buffer = device.upload(&tensor).unwrap();
            buffer.wait().unwrap();
            let mut copy = vec![0; tensor.bytes().len()];
            buffer.copy_to_host(&mut copy).unwrap();
            assert_eq!(copy, tensor.bytes());
            assert_eq!(buffer.host_bytes(copy.len()), Some(tensor.bytes()));
        }
    }
}

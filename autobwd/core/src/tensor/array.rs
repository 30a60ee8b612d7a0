//! Values that are not tensors: tensor arrays, and saved step state of loops.
//!
//! Each such variable has one place, which a `Buf` shares. Saved step state consists of the values that the gradient
//! block reads; the next run reuses its memory. With `checkpoint_every = n`, one step in `n` saves its inputs, and the
//! gradient reruns the steps in between.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;

use super::{Buf, Memory, Tensor, value::add_up};
use crate::{Error, ErrorKind, Result};

/// A tensor array, whose elements may be missing: the value of a variable of kind
/// [`TensorArray`](crate::VarKind::TensorArray) while a program runs.
///
/// All versions of the variable share it: writing an element leaves the others unchanged.
#[derive(Default)]
pub struct TensorArray(Mutex<ArrayElements>);

#[derive(Default)]
struct ArrayElements {
    list: FxHashMap<usize, Tensor>,
    /// One more than the last position ever written.
    len: usize,
    /// Memory of removed elements, for reuse.
    spare: Vec<Tensor>,
}

impl TensorArray {
    fn elements(&self) -> MutexGuard<'_, ArrayElements> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more than the last position written.
    pub fn len(&self) -> usize {
        self.elements().len
    }

    /// Whether no element has been written.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sets an element; positions before it may stay empty.
    ///
    /// # Errors
    /// A value other than a dense tensor; memory runs out.
    pub fn set(&self, position: usize, value: &Buf<'_>) -> Result<()> {
        let bytes = value.bytes()?;
        let mut elements = self.elements();
        elements.make_spare(position);
        elements.reserve(position)?;
        let fits = |t: &Tensor| t.dtype() == value.dtype() && t.dims() == value.dims();
        let spare = elements.spare.iter().rposition(fits).map(|i| elements.spare.swap_remove(i));
        let mut tensor = spare.map_or_else(|| Tensor::zeros(value.dtype(), value.dims()), Ok)?;
        tensor.bytes_mut().copy_from_slice(bytes);
        elements.list.insert(position, tensor);
        elements.len = elements.len.max(position.saturating_add(1));
        Ok(())
    }

    /// Copies an element; returns whether there is one.
    ///
    /// # Errors
    /// An element of another dtype or shape.
    pub fn get(&self, position: usize, out: &mut Buf<'_>) -> Result<bool> {
        self.elements().copy(position, out)
    }

    /// As [`get`](TensorArray::get), and removes the element.
    ///
    /// # Errors
    /// As there.
    pub fn take(&self, position: usize, out: &mut Buf<'_>) -> Result<bool> {
        let mut elements = self.elements();
        let found = elements.copy(position, out)?;
        elements.make_spare(position);
        Ok(found)
    }

    /// Adds the elements of another array to the elements of this one; a missing element counts as zero.
    ///
    /// # Errors
    /// Elements of different dtypes or shapes.
    pub fn add(&self, other: &TensorArray) -> Result<()> {
        if std::ptr::eq(self, other) {
            return Err(Error::internal("a tensor array is added to itself"));
        }
        let (mut elements, other) = (self.elements(), other.elements());
        elements.len = elements.len.max(other.len);
        for (position, tensor) in &other.list {
            match elements.list.get_mut(position) {
                Some(sum) => add_up(sum, tensor)?,
                None => {
                    elements.reserve(*position)?;
                    elements.list.insert(*position, tensor.clone());
                }
            }
        }
        Ok(())
    }

    /// Removes all elements.
    pub fn clear(&self) {
        let ArrayElements { list, spare, len } = &mut *self.elements();
        match spare.try_reserve(list.len()) {
            Ok(()) => spare.extend(list.drain().map(|(_, tensor)| tensor)),
            Err(_) => list.clear(),
        }
        *len = 0;
    }
}

impl ArrayElements {
    /// Reserves space for one more element.
    fn reserve(&mut self, position: usize) -> Result<()> {
        let refuse = |_| {
            Error::new(
                ErrorKind::OutOfMemory,
                format!("out of memory for element {position} of a tensor array"),
            )
        };
        self.list.try_reserve(1).map_err(refuse)
    }

    /// Removes an element and keeps its memory for the next of its dtype and shape, if the list of spare tensors can
    /// grow.
    fn make_spare(&mut self, position: usize) {
        let old = self.list.remove(&position);
        if self.spare.try_reserve(1).is_ok() {
            self.spare.extend(old);
        }
    }

    fn copy(&self, position: usize, out: &mut Buf<'_>) -> Result<bool> {
        let Some(tensor) = self.list.get(&position) else { return Ok(false) };
        if tensor.dtype() != out.dtype() || tensor.dims() != out.dims() {
            let found = format!("element {position} is {} {:?}", tensor.dtype(), tensor.dims());
            return Err(Error::new(ErrorKind::Shape, out.wrong(&found).message()));
        }
        out.bytes_mut()?.copy_from_slice(tensor.bytes());
        Ok(true)
    }
}

/// The saved state of the steps of an operator with a sub-block, first to last, and memory of consumed steps for reuse.
#[derive(Debug, Default)]
pub struct SavedSteps {
    pub(crate) list: Vec<SavedStep>,
    pub(crate) spare: Vec<SavedStep>,
    /// The number of steps; some may have saved no state.
    pub count: usize,
}

impl SavedSteps {
    /// A step state to be filled, with this many bytes and nested control flow operators.
    ///
    /// # Errors
    /// Memory runs out. The saved step state is then freed, here as in [`push`](SavedSteps::push), so that there is
    /// memory to report it.
    pub fn step(&mut self, bytes: usize, nested: usize) -> Result<SavedStep> {
        if let Some(step) = self.spare.pop() {
            return Ok(step);
        }
        let mut all = vec![];
        if all.try_reserve_exact(nested).is_err() {
            return Err(self.out_of_memory(bytes));
        }
        all.resize_with(nested, SavedSteps::default);
        Ok(SavedStep { memory: self.memory(bytes)?, nested: all, layout_index: None })
    }

    /// Memory for a step.
    ///
    /// # Errors
    /// As [`step`](SavedSteps::step).
    pub fn memory(&mut self, bytes: usize) -> Result<Memory> {
        Memory::try_zeroed(bytes).ok_or_else(|| self.out_of_memory(bytes))
    }

    /// Saves the state of a step.
    ///
    /// # Errors
    /// As [`step`](SavedSteps::step).
    pub fn push(&mut self, step: SavedStep) -> Result<()> {
        if self.list.try_reserve(1).is_err() {
            return Err(self.out_of_memory(step.memory.len()));
        }
        self.list.push(step);
        Ok(())
    }

    /// Keeps the memory of a consumed step for reuse, if the list of spare steps can grow.
    pub fn recycle(&mut self, step: SavedStep) {
        if self.spare.try_reserve(1).is_ok() {
            self.spare.push(step);
        }
    }

    fn out_of_memory(&mut self, bytes: usize) -> Error {
        let before = self.list.len();
        *self = SavedSteps::default();
        let text = format!(
            "out of memory: a step saves {bytes} bytes for the backward pass, as did the {before} steps before it; \
             reduce the batch, or save fewer steps with `checkpoint_every`"
        );
        Error::new(ErrorKind::OutOfMemory, text)
    }

    /// A copy of the saved step state.
    ///
    /// # Errors
    /// Memory runs out.
    pub fn try_clone(&self) -> Result<SavedSteps> {
        let list = self.list.iter().map(SavedStep::try_clone).collect::<Result<_>>()?;
        Ok(SavedSteps { list, spare: vec![], count: self.count })
    }

    /// The last step that is not consumed, and the number of steps before it.
    pub fn pop(&mut self) -> Option<(SavedStep, usize)> {
        let step = self.list.pop()?;
        Some((step, self.list.len()))
    }
}

/// The saved state of one step: tensors in one allocation, and the step state of nested operators.
#[derive(Debug)]
pub struct SavedStep {
    /// Its values, one after another.
    pub memory: Memory,
    /// The saved steps of blocks in it.
    pub nested: Vec<SavedSteps>,
    /// The layout of `memory`, if it differs from step to step.
    pub layout_index: Option<usize>,
}

impl SavedStep {
    fn try_clone(&self) -> Result<SavedStep> {
        let mut memory = Memory::any(self.memory.len())?;
        memory.slice_mut::<u8>(0, self.memory.len()).copy_from_slice(self.memory.slice(0, self.memory.len()));
        let nested = self.nested.iter().map(SavedSteps::try_clone).collect::<Result<_>>()?;
        Ok(SavedStep { memory, nested, layout_index: self.layout_index })
    }
}

/// A value that is not a tensor.
#[derive(Debug)]
pub enum ValueCell {
    /// A tensor array.
    Array(TensorArray),
    /// Saved step state.
    Steps(Mutex<SavedSteps>),
}

impl ValueCell {
    /// The saved steps, locked.
    ///
    /// # Errors
    /// A cell of something else.
    pub fn steps(&self) -> Result<MutexGuard<'_, SavedSteps>> {
        match self {
            ValueCell::Steps(steps) => Ok(steps.lock().unwrap_or_else(PoisonError::into_inner)),
            ValueCell::Array(_) => Err(Error::internal("an array in place of step scopes")),
        }
    }

    /// Clears it before the first operator of a run.
    pub fn clear(&self) {
        match self {
            ValueCell::Array(array) => array.clear(),
            ValueCell::Steps(steps) => {
                let SavedSteps { list, spare, .. } =
                    &mut *steps.lock().unwrap_or_else(PoisonError::into_inner);
                match spare.try_reserve(list.len()) {
                    Ok(()) => spare.append(list),
                    Err(_) => list.clear(),
                }
            }
        }
    }
}

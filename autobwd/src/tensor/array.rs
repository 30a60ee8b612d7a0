//! Values that are no tensors: lists of them, and what the steps of a loop leave for its backward part.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::{Buf, Memory, Tensor, value::add_up};
use crate::{Error, ErrorKind, Result};

/// A list of tensors, of which some may be missing: what a variable of kind
/// [`TensorArray`](crate::VarKind::TensorArray) holds while a program runs.
///
/// There is one for all values of the variable: writing an element leaves the others as they are.
#[derive(Default)]
pub struct TensorArray(Mutex<Elements>);

#[derive(Default)]
struct Elements {
    list: BTreeMap<usize, Tensor>,
    /// One more than the last position ever written.
    len: usize,
    /// Memory of elements that are gone.
    spare: Vec<Tensor>,
}

impl TensorArray {
    fn elements(&self) -> MutexGuard<'_, Elements> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more than the last position written.
    pub fn len(&self) -> usize {
        self.elements().len
    }

    /// Whether nothing has been written.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sets an element; positions before it may stay empty.
    ///
    /// # Errors
    /// A slot that holds no whole tensor; no memory.
    pub fn set(&self, position: usize, value: &Buf<'_>) -> Result<()> {
        let bytes = value.bytes()?;
        let mut elements = self.elements();
        let old = elements.list.remove(&position);
        elements.spare.extend(old);
        let fits = |t: &Tensor| t.dtype() == value.dtype() && t.dims() == value.dims();
        let spare = elements.spare.iter().rposition(fits).map(|i| elements.spare.swap_remove(i));
        let mut tensor = spare.map_or_else(|| Tensor::zeros(value.dtype(), value.dims()), Ok)?;
        tensor.bytes_mut().copy_from_slice(bytes);
        elements.list.insert(position, tensor);
        elements.len = elements.len.max(position.saturating_add(1));
        Ok(())
    }

    /// Copies an element; says whether there is one.
    ///
    /// # Errors
    /// An element of another dtype or shape.
    pub fn get(&self, position: usize, out: &mut Buf<'_>) -> Result<bool> {
        self.elements().copy(position, out)
    }

    /// As [`get`](TensorArray::get); afterwards the element is missing.
    ///
    /// # Errors
    /// As there.
    pub fn take(&self, position: usize, out: &mut Buf<'_>) -> Result<bool> {
        let mut elements = self.elements();
        let found = elements.copy(position, out)?;
        let old = elements.list.remove(&position);
        elements.spare.extend(old);
        Ok(found)
    }

    /// Adds the elements of another list to those of this one; a missing element counts as zero.
    ///
    /// # Errors
    /// Elements of different dtypes or shapes.
    pub fn add(&self, other: &TensorArray) -> Result<()> {
        if std::ptr::eq(self, other) {
            return Err(Error::internal("an array is added to itself"));
        }
        let (mut elements, other) = (self.elements(), other.elements());
        elements.len = elements.len.max(other.len);
        for (position, tensor) in &other.list {
            match elements.list.get_mut(position) {
                Some(sum) => add_up(sum, tensor)?,
                None => {
                    elements.list.insert(*position, tensor.clone());
                }
            }
        }
        Ok(())
    }

    /// Forgets all elements.
    pub fn clear(&self) {
        let mut elements = self.elements();
        let old = std::mem::take(&mut elements.list);
        elements.spare.extend(old.into_values());
        elements.len = 0;
    }
}

impl Elements {
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

/// What the steps of an operator with a sub-block have left, first to last, and memory of steps that were consumed.
#[derive(Default)]
pub(crate) struct Steps {
    pub(crate) list: Vec<Step>,
    pub(crate) spare: Vec<Step>,
    /// How many steps there were, of which some may have left nothing.
    pub(crate) count: usize,
}

impl Steps {
    /// The last step that is not consumed, and how many there are before it.
    pub(crate) fn pop(&mut self) -> Option<(Step, usize)> {
        let step = self.list.pop()?;
        Some((step, self.list.len()))
    }
}

/// What one step has left: tensors in one piece of memory, and what the operators within have left.
pub(crate) struct Step {
    pub(crate) memory: Memory,
    pub(crate) nested: Vec<Steps>,
    /// Tells what is where in it, if that differs from step to step.
    pub(crate) record: Option<usize>,
}

/// Where a value lives that is no tensor.
pub(crate) enum Cell {
    Array(TensorArray),
    Steps(Mutex<Steps>),
}

impl Cell {
    pub(crate) fn steps(&self) -> Result<MutexGuard<'_, Steps>> {
        match self {
            Cell::Steps(steps) => Ok(steps.lock().unwrap_or_else(PoisonError::into_inner)),
            Cell::Array(_) => Err(Error::internal("an array in place of step scopes")),
        }
    }

    /// Before the first operator of a run.
    pub(crate) fn clear(&self) {
        match self {
            Cell::Array(array) => array.clear(),
            Cell::Steps(steps) => {
                let steps = &mut *steps.lock().unwrap_or_else(PoisonError::into_inner);
                steps.spare.append(&mut steps.list);
            }
        }
    }
}

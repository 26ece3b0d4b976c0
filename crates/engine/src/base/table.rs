//! Lists whose indices say what they name.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Index, IndexMut};

use crate::base::id::Id;

/// A list with one value for each id below its length.
#[derive(Clone, Debug)]
pub(crate) struct Table<I, T> {
    values: Vec<T>,
    id: PhantomData<I>,
}

impl<I: Id, T> Table<I, T> {
    pub(crate) const fn new() -> Self {
        Self { values: Vec::new(), id: PhantomData }
    }

    /// The id that the next value gets.
    pub(crate) fn next_id(&self) -> I {
        I::new(self.values.len() as u32)
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = I> + use<I, T> {
        (0..self.values.len() as u32).map(I::new)
    }

    /// Each value with its id.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (I, &T)> {
        (0..).map(I::new).zip(&self.values)
    }

    pub(crate) fn get(&self, id: I) -> Option<&T> {
        self.values.get(id.number() as usize)
    }

    pub(crate) fn get_mut(&mut self, id: I) -> Option<&mut T> {
        self.values.get_mut(id.number() as usize)
    }
}

impl<I, T> From<Vec<T>> for Table<I, T> {
    fn from(values: Vec<T>) -> Self {
        Self { values, id: PhantomData }
    }
}

impl<I, T> FromIterator<T> for Table<I, T> {
    fn from_iter<F: IntoIterator<Item = T>>(values: F) -> Self {
        values.into_iter().collect::<Vec<T>>().into()
    }
}

impl<I, T> Deref for Table<I, T> {
    type Target = Vec<T>;

    #[inline(always)]
    fn deref(&self) -> &Vec<T> {
        &self.values
    }
}

impl<I, T> DerefMut for Table<I, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Vec<T> {
        &mut self.values
    }
}

impl<I: Id, T> Index<I> for Table<I, T> {
    type Output = T;

    #[inline(always)]
    fn index(&self, id: I) -> &T {
        &self.values[id.number() as usize]
    }
}

impl<I: Id, T> IndexMut<I> for Table<I, T> {
    #[inline(always)]
    fn index_mut(&mut self, id: I) -> &mut T {
        &mut self.values[id.number() as usize]
    }
}

impl<I, T> Default for Table<I, T> {
    fn default() -> Self {
        Vec::new().into()
    }
}

impl<I, T> IntoIterator for Table<I, T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.values.into_iter()
    }
}

impl<'t, I, T> IntoIterator for &'t Table<I, T> {
    type Item = &'t T;
    type IntoIter = std::slice::Iter<'t, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.values.iter()
    }
}

impl<'t, I, T> IntoIterator for &'t mut Table<I, T> {
    type Item = &'t mut T;
    type IntoIter = std::slice::IterMut<'t, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.values.iter_mut()
    }
}

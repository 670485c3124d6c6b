-- Schema 30. What a person has answered to a run that asks for one.
ALTER TABLE runs ADD COLUMN person_answer TEXT;
